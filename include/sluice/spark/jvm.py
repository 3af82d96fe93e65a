"""The Java that runs Spark, the archive of its classes, and the folder of its temporary files.

Java is found and checked, or an error says what to install.  With the archive a JVM of ``sluice
run`` starts with a third less CPU.  The JVM that finds none writes one when it ends, in the
background, for the next run (class data sharing, JEP 350).  It is a file of some 160 MB per Spark,
Java and classpath in the user's cache folder.  No run needs it: the JVM passes over one that is not
of its own classes, and what cannot be written is not written.

A JVM that is killed leaves its temporary files: shuffles, blocks, native libraries.  So they lie in
a folder that has an owner, and the next JVM deletes those whose owner is gone.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sluice.errors import ConfigurationError

MINIMUM_VERSION = 17  # The oldest that Spark 4 runs on.

_INSTALL = (
    "install Java 17 (Debian/Ubuntu: `sudo apt-get install openjdk-17-jre-headless`;"
    " Fedora: `sudo dnf install java-17-openjdk-headless`; macOS: `brew install openjdk@17`)"
)

_ANSWER_TIMEOUT_S = 30  # A cold JVM on a loaded machine takes seconds.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
SWITCH = "SLUICE_CLASS_ARCHIVE"  # "off": neither read nor written.
# Values of LC_ALL in which a JVM has no folder with an é, and what Python makes of LC_CTYPE there.
LOCALES = {"C": "C.UTF-8", "POSIX": "C.UTF-8"}

# Variables with options of the JVM; one of _DECIDED among them already decides on an archive.
OPTIONS = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")

_DECIDED = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
WRITTEN_WITHIN_S = 3600  # A writer that took longer was killed.
KEPT_UNUSED_S = 30 * 24 * 3600

_TEMPORARY = "java.io.tmpdir"
# What a shell would not split.  Sockets lie there, too, whose paths the system limits to 108 bytes.
_USABLE_FOLDER = re.compile(r"[\w./+-]{1,60}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can use."""

    executable: Path
    version: int


def find_java(env: Mapping[str, str]) -> Java:
    """Return the Java of JAVA_HOME, or else of PATH, as Spark would choose it.

    Raises:
        ConfigurationError: there is none, or it is too old; the message says what to install.
    """
    executable = java_executable(env)
    version = _version(executable)
    if version < MINIMUM_VERSION:
        raise ConfigurationError(
            f"Spark needs Java {MINIMUM_VERSION} or newer, but {executable} is Java {version};"
            f" {_INSTALL} and point JAVA_HOME at it"
        )
    return Java(executable=executable, version=version)


def java_executable(env: Mapping[str, str]) -> Path:
    """The Java of JAVA_HOME, or else of PATH.  Raises ConfigurationError if there is none."""
    home = env.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise ConfigurationError(
                f"JAVA_HOME is {home}, where there is no bin/java; unset it, or {_INSTALL}"
            )
        return executable
    found = shutil.which("java", path=env.get("PATH", ""))
    if found is None:
        raise ConfigurationError(f"Spark needs Java and none was found on PATH; {_INSTALL}")
    return Path(found)


def _version(executable: Path) -> int:
    try:
        answer = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{executable} does not run ({error}); {_INSTALL}") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:  # The stub that macOS installs at /usr/bin/java.
        said = (answer.stderr + answer.stdout).strip().partition("\n")[0]
        raise ConfigurationError(
            f"{executable} is not a working Java{f' ({said})' if said else ''}; {_INSTALL}"
        )
    return int(found.group(1))


def archive_option(java: Path, spark_home: Path, env: Mapping[str, str]) -> str:
    """The JVM's option to read the archive, or to write it; empty for neither.

    *java* is the executable, and *spark_home* the folder that has ``jars``.
    """
    given = " ".join(env.get(name, "") for name in OPTIONS)
    if env.get(SWITCH, "").lower() == "off" or any(word in given for word in _DECIDED):
        return ""
    try:
        folder = _cache_folder(env)
        if any(letter in str(folder) for letter in " \"'\\"):
            return ""  # Spark splits the options of the JVM as a shell does.
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"spark-{_digest(java, spark_home)}.jsa"
        _publish(archive)
        if archive.exists():
            os.utime(archive)
            return f"-XX:SharedArchiveFile={archive}"
        if _claimed(archive):
            return f"-XX:ArchiveClassesAtExit={_unfinished(archive)}"
    except OSError:
        pass
    return ""


def _cache_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sluice"


def _digest(java: Path, spark_home: Path) -> str:
    """A digest of what the JVM compares: it refuses an archive of other jars or another Java."""
    real = java.resolve()
    release = real.parent.parent / "release"
    parts = [str(real), release.read_text() if release.is_file() else str(real.stat().st_mtime_ns)]
    for jar in sorted((spark_home / "jars").iterdir()):
        stat = jar.stat()
        parts.append(f"{jar} {stat.st_size} {int(stat.st_mtime)}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _publish(archive: Path) -> None:
    """Give an archive that a JVM has finished its name, and delete those that are not used."""
    written = _unfinished(archive)
    if not written.exists() or not _is_whole(written):
        return
    written.replace(archive)
    _claim(archive).unlink(missing_ok=True)
    for other in archive.parent.glob("spark-*.jsa"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > KEPT_UNUSED_S:
                other.unlink()


def _is_whole(written: Path) -> bool:
    """Whether its header is there, which the JVM writes last, into a gap that it left."""
    with written.open("rb") as file:
        return any(file.read(4))


def _claimed(archive: Path) -> bool:
    """Whether this run is to write the archive, which one run at a time does."""
    claim = _claim(archive)
    with suppress(FileNotFoundError):
        if time.time() - claim.stat().st_mtime > WRITTEN_WITHIN_S:
            claim.unlink()
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    _unfinished(archive).unlink(missing_ok=True)
    return True


def _unfinished(archive: Path) -> Path:
    return archive.with_suffix(".new")


def _claim(archive: Path) -> Path:
    return archive.with_suffix(".claim")


def temporary_option(env: Mapping[str, str]) -> str:
    """The JVM's option to keep its temporary files in a folder that this process owns; empty if it
    has another one by its options, or if there is no folder whose name it could take.
    """
    given = " ".join(env.get(name, "") for name in OPTIONS)
    folder = "" if _TEMPORARY in given else _folder_until_exit(os.getpid())
    return f"-D{_TEMPORARY}={folder}" if _USABLE_FOLDER.fullmatch(folder) else ""


@cache  # A JVM lives as long as the process that started it, whatever sessions come and go.
def _folder_until_exit(_process: int) -> str:
    stack = ExitStack()
    try:
        folder = stack.enter_context(owned_folder("sluice-spark-"))
    except OSError:
        return ""
    atexit.register(stack.close)
    return str(folder)


@contextmanager
def owned_folder(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new folder for the block in *place*, or in the folder for temporary files.

    It has an owner: the process that holds its lock, until it ends in whatever way.  Those with
    *prefix* that have lost theirs are deleted.
    """
    place, owner = place or Path(tempfile.gettempdir()), os.getpid()
    for left in place.glob(f"{prefix}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with ExitStack() as lock:
            with suppress(OSError):  # A file system without locks.
                lock.enter_context(_locked(folder, waits=True))
            if folder.exists():  # Another process may have seen it before it had an owner.
                try:
                    yield folder
                finally:
                    if os.getpid() == owner:  # Not a fork of it that ends.
                        shutil.rmtree(folder, ignore_errors=True)
                return


@contextmanager
def _locked(folder: Path, *, waits: bool = False) -> Iterator[None]:
    """The lock of this user's *folder*.  Raises OSError if another process has it, unless it
    *waits*.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(number).st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        fcntl.flock(number, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
    finally:
        os.close(number)
