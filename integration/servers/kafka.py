"""A private broker of Kafka, which is its own controller: plain TCP on loopback, data in memory."""

from __future__ import annotations

import base64
import os
import socket
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from integration.provision import find_kafka, find_program, run
from integration.servers.process import ServerProcess, find_free_port

ANSWER_SECONDS = 10.0
PARTITIONS = 4

_LOG = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c %m%n
log4j.logger.kafka.server.KafkaRaftServer=INFO
"""


class Kafka(ServerProcess):
    """One broker; topics have `PARTITIONS` partitions unless they are created with others."""

    technology = "kafka"
    product = "Kafka"

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._libraries = find_kafka()
        [library] = self._libraries.glob("kafka-clients-*.jar")
        self.version = library.stem.rpartition("-")[2]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.port, controller = find_free_port(), find_free_port()
        (self.directory / "log4j.properties").write_text(_LOG)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            # A broker that was killed is let in again when its session is over.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            "log.dirs": str(self.directory / "data"),
            "num.partitions": str(PARTITIONS),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A name that begins with a dash would be an option.
        run([*self._java("kafka.tools.StorageTool"), "format", "-t", f"A{cluster[1:]}", "-c", str(path)])

    def command(self) -> list[str]:
        return [*self._java("kafka.Kafka"), str(self.directory / "server.properties")]

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS):
            pass
        try:
            return bool(AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=ANSWER_SECONDS).brokers)
        except KafkaException as error:
            raise OSError(str(error)) from error

    def _java(self, main: str) -> list[str]:
        java = find_program("java") or str(Path(os.environ["JAVA_HOME"]) / "bin/java")
        options = ["-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        log = f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}"
        return [java, *options, log, "-cp", f"{self._libraries}/*", main]
