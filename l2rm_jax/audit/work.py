"""The directory of an audit in progress, `OUT.partial`, which several processes may share.

    OUT.partial/work/audit.json        all that the audit depends on
    OUT.partial/work/share-2.done      the second process needs nothing more
    OUT.partial/work/vectors/          copies of vectors
    OUT.partial/work/parts/            results of parts, which processes read from each other
    OUT.partial.share-2.lock           lock of the second process

The results are written beside `work`, which is removed when they are complete.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from l2rm_jax.data.files import check_new, claim_work, locked_directory, locked_file
from l2rm_jax.errors import L2RMError
from l2rm_jax.executors import SINGLE, Share
from l2rm_jax.executors.shared import Part, wait_for

_USE = "audits into"
WRITER = 1  # number of the process that writes the results


class Work(NamedTuple):
    """The work of one process on an audit.

    Attributes:
      out: the directory of results, which appears when it is complete.
      share: of this process.
    """

    out: Path
    share: Share

    @property
    def partial(self) -> Path:
        """Where the results are written until they are complete."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def directory(self) -> Path:
        """Where finished stages and parts are kept."""
        return self.partial / "work"

    @property
    def copies(self) -> Path:
        """Where vectors are copied to that cannot be read row by row."""
        return self.directory / "vectors"

    @property
    def parts(self) -> Path:
        """Where processes leave the results of parts for each other."""
        return self.directory / "parts"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the work; if an audit is refused before it is claimed, nothing is left of it.

        Raises:
          ConfigError: the results are there already; another process has this share, or works on
            the same results without sharing.
        """
        check_new(self.out, "directory")
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            share = None if self.share == SINGLE else self.share.number
            with locked_directory(self.partial, _USE, share=share):
                self._done(self.share.number).unlink(missing_ok=True)
                yield
        except L2RMError:
            self._remove_unclaimed()
            raise

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Keep what the audit depends on, or compare it with what is kept (`claim_work`)."""
        with locked_file(self.directory / "claim", "claims work with", timeout=-1):
            claim_work(self._identity, identity, "audit")

    def is_mine_to_finish(self) -> bool:
        """Wait until no other process needs the work, if this process writes the results.

        Returns:
          Whether it does.
        """
        if self.share.number != WRITER:
            self._done(self.share.number).touch()
            return False
        others = [Part(n, self._done(n)) for n in range(1, self.share.count + 1) if n != WRITER]
        is_said = False
        for place in range(len(others)):
            is_said = wait_for(others[place:], is_said)
        return True

    def clear(self) -> None:
        """Remove results that an audit has left that was stopped while it wrote them."""
        for leftover in self.partial.iterdir():
            if leftover.is_dir() and leftover != self.directory:
                shutil.rmtree(leftover)
            elif leftover != self.directory:
                leftover.unlink()

    def finish(self) -> None:
        """Give the results their name, and remove the work."""
        check_new(self.out, "directory")  # again, as the work may have taken hours
        self.partial.rename(self.out)
        # A network file system keeps a file that is open, here or in a process that ends just now.
        shutil.rmtree(self.out / self.directory.name, ignore_errors=True)

    @property
    def _identity(self) -> Path:
        return self.directory / "audit.json"

    def _done(self, number: int) -> Path:
        return self.directory / f"share-{number}.done"

    def _remove_unclaimed(self) -> None:
        """Remove the directory, unless it holds the work of an audit, or another process does."""
        with (
            contextlib.suppress(L2RMError, OSError),
            locked_directory(self.partial, _USE),
        ):
            if not self._identity.exists():
                for done in self.directory.glob("share-*.done"):
                    done.unlink()
                shutil.rmtree(self.copies, ignore_errors=True)
                self.directory.rmdir()
                self.partial.rmdir()
