"""Manage the directory of an audit in progress, `OUT.partial`, which several processes may share.

    OUT.partial/work/audit.json        everything that the audit depends on
    OUT.partial/work/share-2.done      the second process needs nothing more
    OUT.partial/work/vectors/          copies of vectors
    OUT.partial/data/                 the imported data, where the audit imports its source
    OUT.partial/work/parts/            results of parts, which processes read from each other
    OUT.partial.share-2.lock           lock of the second process

The results are written next to `work`, which is removed when they are complete; `data` stays.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from l2rm_jax.errors import L2RMError
from l2rm_jax.jobs import SINGLE, Share
from l2rm_jax.jobs.files import check_new
from l2rm_jax.jobs.job import claim_work
from l2rm_jax.jobs.locks import locked_directory, locked_file
from l2rm_jax.jobs.shares import Part, wait_for

_USE = "audits into"
DATA = "data"  # directory of imported data
WRITER = 1  # number of the process that writes the results


class Work(NamedTuple):
    """Work of one process on an audit.

    Attributes:
      out: the directory of results, which appears when it is complete.
      share: share of this process.
    """

    out: Path
    share: Share

    @property
    def partial(self) -> Path:
        """Directory of the results until they are complete."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def directory(self) -> Path:
        """Directory of finished stages and parts."""
        return self.partial / "work"

    @property
    def data(self) -> Path:
        """Directory of the imported data."""
        return self.partial / DATA

    @property
    def copies(self) -> Path:
        """Directory for copies of vectors that cannot be read row by row."""
        return self.directory / "vectors"

    @property
    def parts(self) -> Path:
        """Directory through which processes exchange the results of parts."""
        return self.directory / "parts"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the work; remove it again if the audit fails before it is claimed.

        Raises:
          ConfigError: the results exist already, another process has this share, or a process
            works on the same results without sharing.
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
        """Store the identity of the audit, or compare it with the stored one (`claim_work`)."""
        with locked_file(self.directory / "claim", "claims work with", timeout=-1):
            claim_work(self._identity, identity, "audit")

    def is_mine_to_finish(self) -> bool:
        """Wait until no other process needs the work, if this process writes the results.

        Returns:
          Whether this process writes the results.
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
        """Remove incomplete results of an audit that was stopped while it wrote them."""
        for leftover in self.partial.iterdir():
            if leftover in (self.directory, self.data):
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def finish(self) -> None:
        """Rename the results to their final name, and remove the work."""
        check_new(self.out, "directory")  # again, as the work may have taken hours
        self.partial.rename(self.out)
        # Network file systems keep files that are open, here or in a process that is just ending.
        shutil.rmtree(self.out / self.directory.name, ignore_errors=True)

    @property
    def _identity(self) -> Path:
        return self.directory / "audit.json"

    def _done(self, number: int) -> Path:
        return self.directory / f"share-{number}.done"

    def _remove_unclaimed(self) -> None:
        """Remove the directory, unless it has claimed work or another process uses it."""
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
