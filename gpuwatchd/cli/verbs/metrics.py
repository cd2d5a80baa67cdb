"""``metrics``: the page that Prometheus scrapes, once, and how it is scraped."""

from __future__ import annotations

import os
import sys

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import extras, registry, text
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
    url = _url(section)
    if flags.json:
        output.emit_answer(Metrics, MetricsPage(page=page, url=url, file=file), view=view)
        return 0
    output.Out(flags).raw(page.rstrip("\n"))
    if not flags.quiet:
        for line in (*(words for _, words in view.warnings), *_how(url, file)):
            sys.stderr.write(f"{text.clean(line, limit=400)}\n")
    return 0


def _url(section: MetricsSection) -> str | None:
    if not section.listen:
        return None
    where = listening.parse(section.listen, remote=section.remote, socket=listening.METRICS_SOCKET)
    if where.path is not None:
        return f"unix:{where.path}"
    host = "localhost" if len(where.hosts) > 1 else where.hosts[0]
    return f"http://{f'[{host}]' if ':' in host else host}:{where.port}/metrics"


def _how(url: str | None, file: str | None) -> list[str]:
    """Return how it is scraped, or what turns it on."""
    lines = []
    if url is not None:
        lines.append(f"the daemon serves it at {url}")
        if url.startswith("http"):
            target = url.removeprefix("http://").removesuffix("/metrics")
            lines.append(f'prometheus.yml: static_configs: [{{targets: ["{target}"]}}]')
    if file is not None:
        folder = os.path.dirname(file)  # noqa: PTH120 - of a text
        lines.append(f"the daemon writes it to {file}")
        lines.append(f"prometheus-node-exporter --collector.textfile.directory={folder}")
    if not lines:
        lines.append(f'off: [metrics] listen = "127.0.0.1:9750" in {user_file()} serves it')
    return [*lines, "see: gpuwatchctl docs prometheus"]
