"""Passwords and certificates of a connection that is opened, read again each time.

So a change of one of them, on the servers and in its source, restarts no program. Called wherever a connection to a
database, a cache node or a vtgate is opened. No message holds a password, nor what a program printed.
"""

from __future__ import annotations

import os
import ssl
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from freshness.config.access import (
    NodeLogin,
    Password,
    PasswordCommand,
    PasswordFile,
    PasswordVariable,
    Tls,
    join_variables,
)
from freshness.config.hostport import parse_host_port, read_password
from freshness.config.keyspace import Keyspace
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError
from freshness.network import BLOCKING, Network

COMMAND_SECONDS: Final = 10.0
"""Time that a program may take to print a password, in seconds. A connection waits for it."""

AGAIN_HINT: Final = "it is read again for the next connection"


class PasswordTimedOut(ConfigError):
    """A password command was waited for in vain."""


def find_password(password: Password, user: str, host: str, port: int, network: Network = BLOCKING) -> str:
    """The password that its source has now. Raises `ConfigError` if it has none."""
    match password:
        case PasswordFile(path):
            return read_password(path)
        case PasswordVariable(parts):
            return join_variables(parts, os.environ)
        case PasswordCommand(arguments):
            values = {"{user}": user, "{host}": host, "{port}": str(port)}
            return network.offload(partial(_run, arguments, values))
        case _:
            return password


def find_credentials(login: NodeLogin, node: str, network: Network = BLOCKING) -> tuple[str, str]:
    """User and password for the node ``host:port``. Raises as `find_password`."""
    host, port = parse_host_port(node)
    return login.user, find_password(login.password, login.user, host, port, network)


def make_context(tls: Tls, network: Network = BLOCKING) -> ssl.SSLContext:
    """`read_context`, for sockets of the network."""
    context = network.offload(partial(read_context, tls))
    context.sslsocket_class = network.tls_socket
    return context


def read_context(tls: Tls) -> ssl.SSLContext:
    """Demands a certificate that is vouched for, and that names the host. Raises `ConfigError` for files that cannot
    be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:  # ssl.SSLError is one
        raise _unusable("tls_ca", tls.ca, error) from None
    if tls.cert is not None and tls.key is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key, password=_refuse_encrypted)
        except OSError as error:
            raise _unusable("tls_cert and tls_key", tls.cert, error) from None
    return context


def describe_tls_failure(error: BaseException | None) -> str | None:
    """An error of TLS in words; None for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', None) or error}"
    return None


TLS_HINT: Final = (
    "see that tls_ca vouches for the server's certificate, and that this is valid now, for the host as it is"
    " written; the files are read again for the next connection"
)


def with_password(address: ServerAddress) -> ServerAddress:
    """With the current password in the place of its source, for a machine that does not have the source."""
    password = find_password(address.password, address.user, address.host, address.port)
    return replace(address, password=password)


def with_passwords(keyspace: Keyspace) -> Keyspace:
    """The same for all servers of a keyspace that the configuration reads rows from."""
    shards = tuple(
        replace(shard, primary=with_password(shard.primary), replicas=tuple(map(with_password, shard.replicas)))
        for shard in keyspace.shards
    )
    return replace(keyspace, shards=shards)


def _run(arguments: tuple[str, ...], values: dict[str, str]) -> str:
    command = list(arguments)
    for name, value in values.items():
        command = [argument.replace(name, value) for argument in command]
    what = f"the password command {command[0]}"
    hint = f"run it by hand: its first line is the password; {AGAIN_HINT}"
    try:
        # Its own words on stderr may hold a secret, and would be in our log.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ConfigError(f"{what} cannot be run: {error.strerror}", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise PasswordTimedOut(f"{what} did not end within {COMMAND_SECONDS:g} s", hint=hint) from None
    if done.returncode != 0:
        raise ConfigError(f"{what} ended with {done.returncode}", hint=hint)
    try:
        password = done.stdout.decode().partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} printed what is not UTF-8 text", hint=hint) from None
    if not password:
        raise ConfigError(f"{what} printed no password", hint=hint)
    return password


def _refuse_encrypted() -> str:
    """In the place of OpenSSL's own question, which would wait at the terminal."""
    raise ConfigError("tls_key is encrypted", hint="decrypt the file: nobody can be asked for its pass phrase")


def _unusable(name: str, path: Path | None, error: OSError) -> ConfigError:
    reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or type(error).__name__
    return ConfigError(f"{name}: {path} cannot be used: {reason}", hint=f"expected PEM; {AGAIN_HINT}")
