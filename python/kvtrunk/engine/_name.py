# SPDX-License-Identifier: Apache-2.0
"""The name under which an engine shares its KV: its configuration, its weights as far as they are
known, and a generation, which rises when an engine forgets. Knows no engine.

Weights are known by the digest of the files that were loaded, or by a version that a trainer gave
them. While they change, and when they cannot be known, the name is a random number that no other
engine has: the engine is alone.

The generation is the daemon's (Namespace.renew). Engines that forget at the same time share again,
and so does one that starts later. A daemon that starts cold counts from 0, and a store may still have
what was made before: so an engine raises its generation to the last one that it used.
"""
from __future__ import annotations

import hashlib
import os
import secrets
from typing import Callable, Optional

from .. import Client, Namespace


RUN = "KVTRUNK_RUN"
"""In the environment: the trainer's run whose versions an engine gets. Two trainers may count theirs
alike."""


def _at_once(call: Callable[[], int]) -> int:
    return call()


class Name:
    """The name of one engine. One thread uses it: that of its scheduler."""

    def __init__(self, config: bytes, files: Optional[str]) -> None:
        """config: digest of all but the weights. files: digest of the weights' files. "": they are
        random numbers. None: they are not known."""
        self._config = config
        self._base: Optional[str] = None
        """Digest of the files last loaded. None: not known, so that no version is."""
        self._version: Optional[str] = None
        self._times = 0
        """The last version given, and how many updates in a row had it."""
        self._run = os.environ.get(RUN, "")
        self._weights = ""
        """Text that names the weights. "": alone."""
        self._alone = b""
        self._renew = False
        """The generation is to rise before the name is used."""
        self._generations: dict[bytes, int] = {}
        """The last one used, by name, if it was above 0."""
        self._control: Optional[Namespace] = None
        self._value = b""
        self.files(files)
        self._unused = False
        """New weights have brought this name, and nothing was made or read under it."""

    def __str__(self) -> str:
        return self._weights or "unknown weights"

    @property
    def alone(self) -> bool:
        """Whether no other engine can have this name."""
        return not self._weights

    # ---- weights

    def unknown(self) -> None:
        """Weights change from here on. A version or files make them known again."""
        self._set("")

    def failed(self) -> None:
        """An update failed: weights are unknown until files are loaded."""
        self._base = None
        self.unknown()

    def files(self, digest: Optional[str]) -> None:
        """Name all weights by the digest of their files, as in __init__()."""
        self._base = digest
        self._version = None
        self._set(f"files {digest}" if digest else "")

    def version(self, version: str) -> str:
        """Name the weights by a trainer's version. A second update of one version is another name: it
        may be the rest of the first. Returns why the engine is alone all the same, or ""."""
        if self._base is None:
            return "what the weights were made from is unknown until they are loaded from files"
        if not self._base and not self._run:
            return (f"the weights began as random ones, and another trainer may give its own this "
                    f"version: start all engines of this trainer with {RUN}=NAME, of your choice")
        if version != self._version:
            self._version, self._times = version, 0
        elif not self.alone:
            return ""
        self._times += 1
        run = f" in run {self._run!r}" if self._run else ""
        self._set(f"version {self._times} of {self._base or 'random'}{run}: {version}")
        return ""

    def _set(self, weights: str) -> None:
        self._weights = weights
        self._alone = secrets.token_bytes(16)
        self._unused, self._renew = True, False
        self._value = b""
        control, self._control = self._control, None
        if control is not None and not control._client.closed:
            control.close()

    # ---- forgetting

    def forget(self) -> bool:
        """Share with none of what was cached so far. False: new weights have done it already."""
        if self._unused:
            return False
        self._alone = secrets.token_bytes(16)
        self._renew = not self.alone
        self._value = b""
        return True

    def forsake(self) -> None:
        """The client is gone. The next one's daemon has a generation of its own."""
        self._control, self._value = None, b""

    def value(self, client: Client, ask: Callable[[Callable[[], int]], int] = _at_once) -> bytes:
        """32 bytes for the fields of namespaces that are used from now on. The generation is asked
        for at the first call after a change, by ask(call), which may end it, as Ring.within() does.
        Error: there is no daemon, or no room."""
        if not self._value:
            generation = 0
            if not self.alone:
                generation = ask(lambda: self._raised(client, self._digest(0)))
            self._value = self._digest(generation)
        self._unused = False
        return self._value

    def _raised(self, client: Client, name: bytes) -> int:
        """The generation of a name, which is no lower than one that was used before."""
        if self._control is None:
            self._control = client.namespace(extra=b"generation\0" + name, label="generation")
        generation = self._control.generation
        while generation < self._generations.get(name, 0):
            generation = self._control.renew()
        if self._renew:
            generation = self._control.renew()
            self._renew = False
        if generation:
            self._generations[name] = generation
        return generation

    def _digest(self, generation: int) -> bytes:
        weights = self._weights.encode() if self._weights else self._alone
        digest = hashlib.sha256()
        for part in (self._config, weights, str(generation).encode()):
            digest.update(b"%d\0%b" % (len(part), part))
        return digest.digest()
