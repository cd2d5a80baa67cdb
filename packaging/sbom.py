"""The bill of materials of a release: CycloneDX 1.6, from the pins and the built wheel."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vendored
from project import NAME, epoch_s, pyproject, sha256, version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pins
    from licences import Said

_PURL = re.compile(r"pkg:(?:pypi|npm)/[a-z0-9-]+@[^@\s]+")
_SERIAL = re.compile(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def make(
    wheel: Path, core: Iterable[pins.Pin], full: list[pins.Pin], said: Mapping[str, Said],
    licences: Mapping[str, str | None],
) -> dict[str, Any]:  # fmt: skip
    """Return the bill of materials of a wheel.

    ``core`` are the pins without extras (``required``), ``full`` those with them (the others are
    ``optional``). The same inputs give the same document, serial number and time included.
    """
    digest = sha256(wheel)
    needed = {pin.name for pin in core}
    at = dt.datetime.fromtimestamp(epoch_s(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ours = {
        **_component(NAME, version(), [digest], pyproject()["project"]["license"]),
        "type": "application",
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {"timestamp": at, "component": ours},
        "components": [
            {
                **_component(pin.name, pin.version, sorted(pin.hashes), licences[pin.name]),
                "scope": "required" if pin.name in needed else "optional",
            }
            for pin in full
        ]
        + [_inside(one) for one in vendored.VENDORED],
        "dependencies": _dependencies(ours["bom-ref"], full, said),
    }


def _inside(one: vendored.Vendored) -> dict[str, Any]:
    number = one.version()
    purl = f"{one.purl}@{number}"
    found = _component(one.name, number, [one.digest()], one.licence)
    return {**found, "bom-ref": purl, "purl": purl, "scope": "required"}


def _component(name: str, number: str, hashes: list[str], licence: str | None) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{number}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": number,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in hashes],
    }
    if licence:
        found["licenses"] = [{"expression": licence}]
    return found


def _dependencies(
    ours: str, full: list[pins.Pin], said: Mapping[str, Said]
) -> list[dict[str, Any]]:
    refs: dict[str, list[str]] = {}
    for pin in full:
        refs.setdefault(pin.name, []).append(f"pkg:pypi/{pin.name}@{pin.version}")

    def met(words: Iterable[str]) -> list[str]:
        names = {canonicalize_name(Requirement(word).name) for word in words}
        return sorted(ref for name in names for ref in refs.get(name, []))

    table = pyproject()["project"]
    direct = [*table["dependencies"]]
    for name, words in table["optional-dependencies"].items():
        direct += words if name not in {"dev", "bench"} else []
    inside = [f"{one.purl}@{one.version()}" for one in vendored.VENDORED]
    found: list[dict[str, Any]] = [{"ref": ours, "dependsOn": [*met(direct), *inside]}]
    found += [{"ref": ref, "dependsOn": []} for ref in inside]
    for name, each in refs.items():
        needs = [w for w in (said[name].needs if name in said else ()) if "extra ==" not in w]
        found += [{"ref": ref, "dependsOn": met(needs)} for ref in each]
    return found


def problems(bom: Mapping[str, Any]) -> list[str]:
    """Return where a document is not what CycloneDX 1.6 and its readers expect."""
    said = []
    if (bom.get("bomFormat"), bom.get("specVersion"), bom.get("version")) != (
        "CycloneDX",
        "1.6",
        1,
    ):
        said.append("it does not say that it is CycloneDX 1.6, version 1")
    if not _SERIAL.fullmatch(str(bom.get("serialNumber"))):
        said.append("the serial number is no urn:uuid")
    components = [bom.get("metadata", {}).get("component", {}), *bom.get("components", [])]
    refs = [one.get("bom-ref") for one in components]
    said += [
        f"{ref} is there twice" for ref in sorted({r for r in refs if refs.count(r) > 1}, key=str)
    ]
    for one in components:
        name = one.get("name", "?")
        said += [f"{name} has no {key}" for key in ("type", "name", "version") if not one.get(key)]
        if not _PURL.fullmatch(str(one.get("purl"))):
            said.append(f"{name} has no purl")
        digests = [each.get("content", "") for each in one.get("hashes", [])]
        if not digests or not all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests):
            said.append(f"{name} has no SHA-256")
        if not one.get("licenses"):
            said.append(f"{name} has no licence")
    known = set(refs)
    for row in bom.get("dependencies", []):
        unknown = sorted({row.get("ref"), *row.get("dependsOn", [])} - known, key=str)
        said += [f"{ref} is depended on and is no component" for ref in unknown]
    if {row.get("ref") for row in bom.get("dependencies", [])} != known:
        said.append("not every component has a row of dependencies")
    return said
