"""``metrics``: the page that Prometheus scrapes, once, and how it is scraped."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import extras, registry, text
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import MetricsSection, expanded, listening, user_file
from gpuwatchd.view.answers.program import Metrics, MetricsPage
from gpuwatchd.view.queries import current_state

_RENDER = {"metrics": "gpuwatchd.view.metrics:render"}
"""prometheus-client comes with it."""


@click.command("metrics", epilog=options.examples("metrics", "metrics -q | promtool check metrics"))
def command() -> int:
    """Print what Prometheus scrapes, once; standard error has how it is scraped.

    The daemon serves it where [metrics] listen says, or writes it for node_exporter.
    """
    flags = options.current()
    section = flags.load_config().config.metrics
    extras.need("metrics", "the page", "prometheus_client", page="errors#metrics-extra")
    view = current_state.load_view(flags)
    version = {} if view.daemon.version is None else {"version": view.daemon.version}
    page = registry.load(_RENDER, "metrics")(view, compat=section.compat, **version).decode()
    file = str(expanded(section.file)) if section.file else None
    url, daemon, done = _url(section), view.daemon, []
    for code in (ProblemCode.METRICS_LISTEN, ProblemCode.METRICS_FILE):
        problems = current_state.problems_of(daemon, code) if daemon.running else []
        view.warnings += [(code.value, why) for why in problems]
        done.append(daemon.running and not problems)
    served, written = done
    if flags.json:
        data = MetricsPage(page=page, url=url if served else None, file=file if written else None)
        output.emit_answer(Metrics, data, view=view)
        return 0
    output.Out(flags).raw(page.rstrip("\n"))
    if not flags.quiet:
        for line in (
            *(words for _, words in view.warnings),
            *_how(section, url, file, served=served, written=written),
        ):
            sys.stderr.write(f"{text.clean(line, limit=400)}\n")
    return 0


def _url(section: MetricsSection) -> str | None:
    if not section.listen:
        return None
    where = listening.parse(section.listen, remote=section.remote, socket=listening.METRICS_SOCKET)
    if where.path is not None:
        return f"unix:{where.path}"
    host = "localhost" if len(where.hosts) > 1 else where.hosts[0]
    if ipaddress.ip_address(where.hosts[0]).is_unspecified:  # every address, and none to ask at
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{where.port}/metrics"


def _how(
    section: MetricsSection, url: str | None, file: str | None, *, served: bool, written: bool
) -> list[str]:
    """Return how it is scraped, or what turns it on."""
    lines = []
    if url is not None:
        lines.append(f"{'' if served else 'not '}served by the daemon at {url}")
        if url.startswith("http"):
            target = url.removeprefix("http://").removesuffix("/metrics")
            lines.append(f'prometheus.yml: static_configs: [{{targets: ["{target}"]}}]')
        else:
            lines.append("Prometheus scrapes no unix socket: [metrics] file is for node_exporter")
        if section.token_file:
            file_of_token = expanded(section.token_file)
            lines.append(f'prometheus.yml: authorization: {{credentials_file: "{file_of_token}"}}')
    if file is not None:
        folder = os.path.dirname(file)  # noqa: PTH120 - of a text
        lines.append(f"{'' if written else 'not '}written by the daemon to {file}")
        lines.append(f"prometheus-node-exporter --collector.textfile.directory={folder}")
    if not lines:
        lines.append(f'off: [metrics] listen = "127.0.0.1:9750" in {user_file()} serves it')
    return [*lines, "see: gpuwatchctl docs prometheus"]
