"""Which hosts are a worker's own: rendezvous hashing, so that few move when their number changes.

Each host goes to the shard whose hash with it is the highest. All workers read the same answers
and each leaves out what is another's: a question that named its hosts would be longer than some
servers take (VictoriaMetrics: 16 KiB), and all values of 100,000 GPUs are 9 MB a minute.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from typing import Final, NamedTuple

_FORM: Final = re.compile(r"(?:(hostname)|([0-9]{1,5}))/([0-9]{1,5})")
_ORDINAL: Final = re.compile(r"-([0-9]{1,5})$")
MOST: Final = 1024


class Shard(NamedTuple):
    """One of ``of`` workers, counted from 1."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        """Return it as it is written: "2/4"."""
        return f"{self.number}/{self.of}"

    def owns(self, host: str) -> bool:
        """Say whether a host's GPUs are this worker's."""
        return self.of == 1 or _owner(host, self.of) == self.number


def parse(words: str, hostname: str | None = None) -> Shard:
    """Return the shard that a text means.

    "2/4" is the second of four. "hostname/4" takes the number at the end of this machine's name,
    which Kubernetes counts from 0 in a StatefulSet: "fleet-0" is 1/4, "fleet-3" is 4/4.

    Raises
    ------
    ValueError
        When it is none.

    Examples
    --------
    >>> str(parse("2/4")), str(parse("hostname/4", "fleet-3"))
    ('2/4', '4/4')
    """
    match = _FORM.fullmatch(words.strip())
    if match is None:
        form = f'"N/M", such as "2/4", or "hostname/M", with 1 to {MOST} shards'
        raise ValueError(f"expected {form}")
    number, of = int(match[2] or 0), int(match[3])
    if match[1]:
        name = os.uname().nodename.partition(".")[0] if hostname is None else hostname
        ordinal = _ORDINAL.search(name)
        if ordinal is None:
            raise ValueError('the name of this machine does not end with "-" and a number')
        number = int(ordinal[1]) + 1
    if not 1 <= of <= MOST:
        raise ValueError(f"expected 1 to {MOST} shards")
    if not 1 <= number <= of:
        which = f"this machine's number makes it shard {number}" if match[1] else f"shard {number}"
        raise ValueError(f"{which}, and there are {of}")
    return Shard(number, of)


@lru_cache(maxsize=1 << 17)
def _owner(host: str, of: int) -> int:
    name = host.encode("utf-8", "surrogatepass")
    return max(range(1, of + 1), key=lambda number: _weight(name, number))


def _weight(name: bytes, number: int) -> bytes:
    return hashlib.blake2b(b"%d/%s" % (number, name), digest_size=8).digest()
