"""A running invalidator serves its clients over TLS, each what its token opens, and shows no secret anywhere."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from integration.configuration import write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, call_cli, run_cli, wait_until
from integration.servers import Memcached, Pair
from integration.servers.certificates import make_certificates
from integration.servers.database import SCHEMA
from integration.servers.process import find_free_port
from integration.servers.program import InvalidatorProcess
from spark.stream.http import Service

WAIT_SECONDS: Final = 60
SECRETS: Final = {
    name: f"planted-{name}-8c1f" for name in ("operator", "reports", "grafana", "account", "other", "wrong")
}
"""What no log, answer, error, status or process list may hold; certificates' keys and cache nodes have others."""

HTTP: Final = """[http]
listen = "127.0.0.1:{port}"
token_file = "operator"
tls_cert = "cert.pem"
tls_key = "key.pem"
[http.clients.reports]
token_file = "reports"
scopes = ["stream"]
tables = ["customers"]
hidden_columns = ["v"]
[http.clients.grafana]
token_file = "grafana"
scopes = ["read"]
"""


@dataclass(slots=True)
class Asker:
    """Asks the service, and keeps all that it answered."""

    url: str
    trusted: ssl.SSLContext
    answers: list[str]

    def ask(self, method: str, path: str, token: str | None, document: Any = None) -> int:
        headers = {} if token is None else {"authorization": f"Bearer {SECRETS[token]}"}
        body = None
        if document is not None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            headers["content-type"] = "application/json"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS, context=self.trusted) as answer:
                self.answers.append(f"{answer.headers}\n{answer.read().decode()}")
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            self.answers.append(f"{refusal.headers}\n{refusal.read().decode()}")
            return refusal.code


def test_each_token_opens_its_own_and_no_secret_is_shown(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path)
    for name in ("operator", "reports", "grafana"):
        (tmp_path / name).write_text(f"{SECRETS[name]}\n")
    primary = pair.primary
    primary.execute(CUSTOMERS_TABLE, database=SCHEMA)
    primary.execute(f"CREATE USER planted@'%' IDENTIFIED BY '{SECRETS['account']}'")
    primary.execute("GRANT ALL ON *.* TO planted@'%'")
    port = find_free_port()
    url = f"mysql://planted:{SECRETS['account']}@127.0.0.1:{primary.port}/{SCHEMA}"
    with Memcached() as node:
        options: dict[str, Any] = {"cache": CACHE, "stream": STREAM, "extra": HTTP.format(port=port)}
        path = write_config(tmp_path, primary.flavor, url, [node.address], **options)
        with InvalidatorProcess(path, "--log-level", "debug") as invalidator:
            trusted = ssl.create_default_context(cafile=str(files.ca))
            asker = Asker(f"https://127.0.0.1:{port}", trusted, [])
            wait_until(lambda: asker.ask("GET", "/readyz", None) == 200, "it is ready", invalidator.log)
            check_scopes(asker)
            monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
            check_stream(asker.url, tmp_path / "reports", primary.execute)
            check = call_cli("check", "-c", path)
            assert "http.listen" not in check.stdout, "an invalidator that serves its port over TLS is no finding"
            shown = [check.stdout, check.stderr, *show_with_errors(asker, path, url)]
            shown.append(Path(f"/proc/{invalidator.pid}/cmdline").read_text())
        shown += [invalidator.log(), *asker.answers]
    assert "Access denied" in "".join(shown), "the errors were made"
    for name, secret in SECRETS.items():
        assert secret not in "".join(shown), name
    assert "PRIVATE KEY" not in "".join(shown)


def check_scopes(asker: Asker) -> None:
    nothing = {"object": "customer", "keys": [["1"]]}
    for method, path, document, openers in (
        ("GET", "/metrics", None, {"operator", "grafana"}),
        ("GET", "/v1/status", None, {"operator", "grafana"}),
        ("GET", "/openapi.json", None, {"operator", "grafana"}),
        ("GET", "/v1/topology", None, {"operator", "grafana", "reports"}),
        ("GET", "/v1/token", None, {"operator", "grafana", "reports"}),
        ("GET", "/v1/update-stream?since=now&keyspace=none", None, set()),
        ("POST", "/v1/invalidate", nothing, {"operator"}),
    ):
        for token in ("operator", "reports", "grafana"):
            status = asker.ask(method, path, token, document)
            assert (status == 200) == (token in openers), (path, token, status)
        assert asker.ask(method, path, None, document) == 401
        assert asker.ask(method, path, "wrong", document) == 401
        assert asker.ask(method, f"{path.partition('?')[0]}?token={SECRETS['wrong']}", None, document) == 401


def check_stream(url: str, token_file: Path, execute: Any) -> None:
    """As the jobs of Spark read it: the client's own certificates are trusted by OpenSSL's variable."""
    service = Service(url, str(token_file))
    lines = service.follow({"keyspace": "shop", "since": service.get("/v1/token")["token"]})
    execute("INSERT INTO customers VALUES (1, 'a', 7)", database=SCHEMA)
    row = next(line for line in lines if getattr(line, "table", "") == "customers" and hasattr(line, "after"))
    assert row.after == {"id": 1, "name": "a"}


def show_with_errors(asker: Asker, path: Path, url: str) -> list[str]:
    """What is shown where secrets are in the wrong place, or wrong."""
    config = path.read_text().replace(asker.url.removeprefix("https://"), f"127.0.0.1:{find_free_port()}")
    wrong = path.with_name("wrong.toml")
    shown = []
    for previous, present in (
        (url, url.replace(SECRETS["account"], SECRETS["wrong"])),
        (url, f"mysql://planted:{SECRETS['other']}@"),
        ("[stream]", f'[stream]\npasword = "{SECRETS["other"]}"'),
        ('primary = "', f'primary = "mysql:/{SECRETS["other"]}'),
    ):
        assert config.count(previous) == 1, previous
        wrong.write_text(config.replace(previous, present))
        for verb in ("check", "run"):
            ended = (
                run_cli(verb, "-c", wrong, "--log-level", "debug") if verb == "run" else call_cli(verb, "-c", wrong)
            )
            assert ended.returncode != 0
            shown += [ended.stdout, ended.stderr]
    status = call_cli("status", "-c", path, "--json")
    assert status.returncode == 0
    shown += [status.stdout, status.stderr]
    for token, document in (
        ("operator", b'{"' + SECRETS["other"].encode() * 3),
        (
            "operator",
            {"topology": 2, "keyspaces": {"shop": {"flavor": "mysql", "shards": [{"primary": url}], "x": url}}},
        ),
        ("grafana", {"topology": 2, "keyspaces": {}}),
    ):
        assert asker.ask("PUT", "/v1/topology", token, document) in (400, 403, 422)
    assert asker.ask("GET", f"/v1/status?token={SECRETS['operator']}", "operator") == 400
    return shown
