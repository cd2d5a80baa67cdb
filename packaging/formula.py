"""Write the Homebrew formula of a release: every dependency with its address and its pinned hash.

The addresses are asked of the package index when the formula is written, and a file is taken only
if its hash is among those of ``packaging/constraints.txt``. The formula is an output of a release,
in a tap that is pushed as it stands (``build/homebrew-gpuwatchd``); never a part of this project.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pins
from indexfiles import IndexFile, configured_index, files_of
from project import NAME, PINS, ROOT, Failed, pyproject, sha256, version

PYTHON = "3.13"
"""The Python that Homebrew brings; ``depends_on`` below names it too."""
BREWED = {"numpy": "numpy"}
"""Packages that Homebrew compiles itself, for that Python; the environment sees its packages."""
SYSTEMS = ("linux", "darwin")
UNUSED = frozenset({"pip"})
"""Asked for by a dependency, needed by nothing that we call; Homebrew's Python brings its own."""
TAP = ROOT / f"build/homebrew-{NAME}"
README = f"""\
# The tap of {NAME}

    brew tap OWNER/{NAME}
    brew install {NAME}
    brew services start {NAME}

Its formula is written by `make formula` for each release: no change is made by hand.
"""
TEMPLATE = """\
class Gpuwatchd < Formula
  include Language::Python::Virtualenv

  desc "GPU memory leak detector that warns long before the crash"
  homepage "{homepage}"
  url "{url}"
  sha256 "{sha256}"
  license all_of: ["Apache-2.0", "MIT"]

  livecheck do
    skip "the tap is updated with each release"
  end

{needs}
  depends_on "python@{python}"
{resources}
  def install
    # The pages of the checkout are installed below; none is linked from the environment.
    virtualenv_install_with_resources(link_manpages: false)
    man1.install "docs/man/gpuwatchctl.1"
    man5.install "docs/man/gpuwatchd.toml.5"
    man8.install "docs/man/gpuwatchd.8"
    bash_completion.install "gpuwatchd/cli/completions/gpuwatchctl.bash" => "gpuwatchctl"
    zsh_completion.install "gpuwatchd/cli/completions/_gpuwatchctl"
    fish_completion.install "gpuwatchd/cli/completions/gpuwatchctl.fish"
  end

  # Not `successful_exit: false`: that gives no Restart line in the unit on Linux; nor `crashed:
  # true`: on macOS that restarts after a signal only.
  service do
    run [opt_bin/"gpuwatchd"]
    keep_alive true
    log_path var/"log/gpuwatchd.log"
    error_log_path var/"log/gpuwatchd.log"
    environment_variables PATH: std_service_path_env, PYTHONUNBUFFERED: "1"
    process_type :background
  end

  def caveats
    <<~EOS
      What works on this machine, and what mends what does not:
        gpuwatchctl doctor
      Start the daemon now and at every login, in one of two ways, not both (`gpuwatchctl service
      install` refuses while the other one is there):
        brew services start gpuwatchd
        gpuwatchctl service install
      macOS asks once whether notifications are allowed; `gpuwatchctl notify test` shows one.
      Your history and configuration stay when the formula is removed.
    EOS
  end

  test do
    ENV["GPUWATCHD_STATE_DIR"] = testpath/"state"
    ENV["GPUWATCHD_RUNTIME_DIR"] = testpath/"run"
    assert_match version.to_s, shell_output("#{{bin}}/gpuwatchctl --version")
    assert_match version.to_s, shell_output("#{{bin}}/gpuwatchd --version")
    # 40 MiB a minute on a card of 24 GiB, for two hours.
    log = ["timestamp, index, name, memory.used [MiB], memory.total [MiB]"]
    (0...240).each do |n|
      at = Time.utc(2026, 1, 1) + (30 * n)
      moment = at.strftime("%Y/%m/%d %H:%M:%S.000")
      log << "#{{moment}}, 0, NVIDIA A10, #{{12_000 + (20 * n)}} MiB, 24576 MiB"
    end
    (testpath/"gpu.csv").write "#{{log.join("\\n")}}\\n"
    found = shell_output("#{{bin}}/gpuwatchctl analyze --json gpu.csv", 3)
    assert_match "gradual", found
    assert_match "{first_page}", shell_output("#{{bin}}/gpuwatchctl docs --list")
  end
end
"""
_RESOURCE = """
resource "{name}" do
  url "{url}"
  sha256 "{sha256}"
end
"""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One dependency and the file that it is built from."""

    name: str
    url: str
    sha256: str
    systems: tuple[str, ...] = SYSTEMS
    """Where it is needed."""


def wanted(found: list[pins.Pin]) -> list[pins.Pin]:
    """Return what the formula brings, for macOS and Linux alike, without what Homebrew has."""
    return [
        pin
        for pin in found
        if pin.name not in BREWED
        and pin.name not in UNUSED
        and any(pin.holds(PYTHON, system) for system in SYSTEMS)
    ]


def choose(pin: pins.Pin, files: list[IndexFile]) -> Resource:
    """Take the source distribution of a pin; where there is none, the wheel that fits everywhere.

    Raises
    ------
    Failed
        When the index has no such file, or only with a hash that is not pinned.
    """
    ours = [file for file in files if _version_in(file.filename, pin)]
    if not ours:
        raise Failed(f"the index has no {pin.name} {pin.version}", "make pins")
    if all(file.yanked for file in ours):
        raise Failed(f"{pin.name} {pin.version} was withdrawn by its authors", "make pins")
    fitting = [file for file in ours if file.is_sdist] or [
        file for file in ours if file.filename.endswith("-none-any.whl")
    ]
    if not fitting:
        raise Failed(f"{pin.name} {pin.version} has neither a source nor a wheel for everybody")
    for file in fitting:
        if file.sha256 in pin.hashes:
            systems = tuple(system for system in SYSTEMS if pin.holds(PYTHON, system))
            return Resource(name=pin.name, url=file.url, sha256=file.sha256, systems=systems)
    raise Failed(
        f"{fitting[0].filename} on the index is not the file that is pinned",
        f"compare it with {PINS}; do not release before you know why",
    )


def _version_in(filename: str, pin: pins.Pin) -> bool:
    stem = re.sub(r"\.(tar\.gz|zip|whl)$", "", filename)
    name = re.escape(pin.name).replace(r"\-", "[-_.]+")
    return bool(re.match(rf"(?i){name}-{re.escape(pin.version)}(-|$)", stem))


def gather(found: list[pins.Pin], index: str) -> list[Resource]:
    """Ask the index for every pin, eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda pin: choose(pin, files_of(pin.name, index)), found)
        return sorted(answers, key=lambda resource: resource.name)


def render(resources: list[Resource], *, homepage: str, url: str, digest: str) -> str:
    """Return the text of the formula."""
    blocks = ""
    # In the order that `brew style` asks for: what one system needs before what all need.
    for only, word in ((("darwin",), "on_macos"), (("linux",), "on_linux"), ((), None)):
        inside = "".join(
            _RESOURCE.format(name=one.name, url=_plain(one.url), sha256=one.sha256)
            for one in resources
            if one.systems == (only or SYSTEMS)
        )
        if word and inside:
            inside = f"\n{word} do\n{textwrap.indent(inside.strip(), '  ')}\nend\n"
        blocks += textwrap.indent(inside, "  ")
    return TEMPLATE.format(
        homepage=_plain(homepage),
        url=_plain(url),
        sha256=digest,
        needs="\n".join(f'  depends_on "{name}"' for name in sorted(BREWED.values())),
        python=PYTHON,
        resources=blocks,
        first_page="first-leak",
    )


def _plain(url: str) -> str:
    # What comes from outside goes between quotes of a program.
    if not re.fullmatch(r"[a-z]+://[A-Za-z0-9._~:/?#@!&()*+,;=%\[\]-]+", url):
        raise Failed(f"not an address that can stand in a formula: {url[:80]!r}")
    return url


def problems(text: str, found: list[pins.Pin]) -> list[str]:
    """Return what is wrong with a formula: what Homebrew's own audit and a reader would say."""
    said = []
    if not re.search(r"^class Gpuwatchd < Formula$", text, re.MULTILINE):
        said.append("the class is not named after the file")
    desc = re.search(r'^  desc "(.*)"$', text, re.MULTILINE)
    if not desc or len(f"{NAME}: {desc[1]}") > 80:
        said.append("the description is missing or longer than 80 characters")
    elif re.match(r"(?i)(a|an|the|gpuwatchd)\b", desc[1]) or desc[1].endswith("."):
        said.append("the description starts with an article or the name, or ends with a full stop")
    if re.search(r'^  resource "(.|\n)*^  on_(macos|linux) do$', text, re.MULTILINE):
        said.append("what one system needs stands after what all need")
    licences = json.dumps(pyproject()["project"]["license"].split(" AND "))
    said += [
        f"{word!r} is missing"
        for word in (
            f"license all_of: {licences}",
            f'depends_on "python@{PYTHON}"',
            "keep_alive true",
            "  test do",
            "  def install",
            "  def caveats",
            *(f'depends_on "{name}"' for name in BREWED.values()),
        )
        if word not in text
    ]
    return said + _resource_problems(text, found)


def _resource_problems(text: str, found: list[pins.Pin]) -> list[str]:
    said = []
    head = text.partition('  resource "')[0]
    if not re.search(r'^  url "\S+"\n  sha256 "[0-9a-f]{64}"$', head, re.MULTILINE):
        said.append("the source has no address or no hash")
    blocks = re.findall(r'^ +resource "([^"]*)" do\n(.*?)^ +end$', text, re.MULTILINE | re.DOTALL)
    names = [name for name, _ in blocks]
    twice = sorted({name for name in names if names.count(name) > 1})
    said += [f"resource {name} is there twice" for name in twice]
    pinned = {pin.name: pin for pin in wanted(found)}
    said += [f"{name} has no resource" for name in sorted(pinned.keys() - set(names))]
    said += [f"{name} is not among the pins" for name in sorted(set(names) - pinned.keys())]
    for name, body in blocks:
        url = re.search(r'^ +url "(\S+)"$', body, re.MULTILINE)
        digest = re.search(r'^ +sha256 "([0-9a-f]{64})"$', body, re.MULTILINE)
        if not url or not digest:
            said.append(f"resource {name} has no address or no hash of 64 digits")
        elif name in pinned and digest[1] not in pinned[name].hashes:
            said.append(f"resource {name} has a hash that is not pinned")
    return said


def write(options: argparse.Namespace) -> Path:
    """Write the formula; :class:`project.Failed` when it would be wrong."""
    found = pins.read(ROOT / PINS)
    source = options.source or ROOT / "dist" / f"{NAME}-{version()}.tar.gz"
    if not source.is_file():
        raise Failed(f"{source} is not there", "make dist")
    resources = gather(wanted(found), (options.index or configured_index()).rstrip("/"))
    text = render(
        resources,
        homepage=options.homepage,
        url=f"{options.url.rstrip('/')}/{source.name}",
        digest=sha256(source),
    )
    if said := problems(text, found):
        raise Failed("the formula is wrong: " + "; ".join(said))
    out = Path(options.out, "Formula", f"{NAME}.rb")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, "utf-8")
    Path(options.out, "README.md").write_text(README, "utf-8")
    return out


def main(argv: list[str] | None = None) -> int:
    """Write the formula and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", required=True, help="the folder that the release's files lie in")
    parser.add_argument("--homepage", required=True, help="the page of the project")
    parser.add_argument("--source", type=Path, help="the source distribution (dist/)")
    parser.add_argument("--index", help="another package index than pip's")
    parser.add_argument("--out", type=Path, default=TAP, help="the tap")
    options = parser.parse_args(argv)
    try:
        out = write(options)
    except Failed as failure:
        print(f"formula: {failure}", file=sys.stderr)
        if failure.hint:
            print(f"hint: {failure.hint}", file=sys.stderr)
        return 1
    print(f"{out}\npush {options.out} as the repository homebrew-{NAME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
