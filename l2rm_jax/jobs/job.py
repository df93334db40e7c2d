"""Long work on a new directory that processes may stop, resume and share.

OUT.partial/                  the results until they are complete
OUT.partial/work/             removed when they are complete
OUT.partial/work/audit.json   everything that the results of an audit depend on
OUT.partial/work/00007.json   result of a part
OUT.partial/work/share-2.done the second process needs nothing more
OUT.partial.lock              lock of a process, `OUT.partial.share-2.lock` of the second share
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.jobs.files import check_new, remove_unfinished, replace_file
from l2rm_jax.jobs.locks import locked_directory, locked_file
from l2rm_jax.jobs.shares import SINGLE, WRITER, Part, Share, wait_for


class Job(NamedTuple):
    """Work of one process on a new directory.

    Attributes:
      out: the directory, which appears when it is complete.
      what: the kind of work, a verb and a noun for messages: "import".
      share: share of this process.
    """

    out: Path
    what: str
    share: Share = SINGLE

    @property
    def partial(self) -> Path:
        """Directory of the results until they are complete."""
        return self.out.with_name(f"{self.out.name}.partial")

    @property
    def work(self) -> Path:
        """Directory of everything that is removed at the end."""
        return self.partial / "work"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the work of this share; an error before it is claimed removes its directory.

        Raises:
          ConfigError: another process has this share, or all of the work.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        try:
            share = None if self.share == SINGLE else self.share.number
            with locked_directory(self.partial, self._use, share=share):
                self._done(self.share.number).unlink(missing_ok=True)
                yield
        except L2RMError:
            with contextlib.suppress(L2RMError, OSError), locked_directory(self.partial, self._use):
                if not self._identity.exists():  # and no other share is at work
                    shutil.rmtree(self.work)
                    self.partial.rmdir()  # unless others have files there
            raise

    def check(self, identity: Mapping[str, Any]) -> None:
        """Check that work in progress, if there is any, is of the same command.

        Args:
          identity: all that the result depends on, as values of JSON.

        Raises:
          ConfigError: it is of another command; the message names the differences.
        """
        if names := differences(self._identity, identity):
            raise self.other_work(f"it differs in {', '.join(names)}")

    def claim(self, identity: Mapping[str, Any]) -> None:
        """As `check`; then store the identity, so that no other command resumes the work."""
        with locked_file(self.work / "claim", "claims work with", timeout=-1):
            self.check(identity)
            if not self._identity.exists():
                replace_file(self._identity, json.dumps(identity).encode())

    def other_work(self, how: str) -> ConfigError:
        """Return the error that the directory holds work in progress of another command."""
        return ConfigError(
            f"{self.partial}: holds another {self.what} in progress ({how}), expected the same "
            "command again, or another --out",
            hint=f"rm -r {self.partial}",
        )

    def part(self, number: int, compute: Callable[[], Any]) -> Any:
        """Return the stored result of a part, or compute and store it.

        Args:
          number: number of the part, from 0.
          compute: returns the result, a value of JSON.

        Raises:
          ConfigError: another process computes this part.
        """
        file = self._part(number)
        if not file.exists():
            lock, name = file.with_suffix(".lock"), file.with_suffix("")
            with locked_file(lock, self._use, name=name):
                replace_file(file, json.dumps(compute()).encode())
        return json.loads(file.read_bytes())

    def missing(self, count: int) -> list[int]:
        """Return the numbers of the parts, of `count`, whose results are not stored."""
        return [number for number in range(count) if not self._part(number).exists()]

    def reduce(self, count: int, write: Callable[[list[Any]], Any]) -> Any:
        """Finish the work if this process is the last one; nobody holds a lock.

        Args:
          count: number of parts.
          write: receives the results of all parts, and writes what else belongs to the directory.

        Returns:
          The result of `write`; None if parts are missing or another process is at work.
        """
        with contextlib.ExitStack() as stack:
            if self.missing(count):
                return None
            try:
                stack.enter_context(locked_directory(self.partial, self._use))
            except ConfigError:  # another process is at work
                return None
            if not self.partial.exists():  # it has finished
                return None
            result = write([json.loads(self._part(n).read_bytes()) for n in range(count)])
            self.finish()
            return result

    def is_mine_to_finish(self) -> bool:
        """Wait until no other share needs the work, if this process writes the results.

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

    def clear(self, *kept: str) -> None:
        """Remove results that were stopped while they were written, except those named `kept`."""
        for leftover in self.partial.iterdir():
            if leftover.name not in (self.work.name, *kept):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def finish(self) -> None:
        """Remove the work, and rename the results to their final name.

        Raises:
          ConfigError: the directory exists by now.
        """
        with contextlib.suppress(OSError):
            self.out.rmdir()  # an empty one is not complete
        check_new(self.out, "directory")  # again, as the work may have taken hours
        done = self.work.with_suffix(".unfinished")
        shutil.rmtree(done, ignore_errors=True)  # of a process that was killed here
        self.work.rename(done)  # no other command resumes a half of it
        remove_unfinished(self.partial)
        self.partial.rename(self.out)

    @property
    def _identity(self) -> Path:
        return self.work / f"{self.what}.json"

    @property
    def _use(self) -> str:
        return f"{self.what}s into"

    def _part(self, number: int) -> Path:
        return self.work / f"{number:05}.json"

    def _done(self, number: int) -> Path:
        return self.work / f"share-{number}.done"


def differences(file: Path, identity: Mapping[str, Any]) -> list[str]:
    """Return the names of values that differ from the identity in a file, if it exists."""
    now = json.loads(json.dumps(identity))
    try:
        known = json.loads(file.read_bytes()) if file.exists() else now
    except ValueError:
        known = {}
    return [name for name in now if known.get(name) != now[name]]
