"""Connections to brokers, the translation of client errors, and the metadata of topics.

Tasks import this module, so it must load little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import RunError, SystemUnavailable, TidegateError

# How long a broker may take to respond.
RESPONSE_TIMEOUT_S = 10.0
_SECRET_OPTION = "sasl_password"
# The client would log to the standard error of the process that uses it.
_NO_LOG = {"log_level": 0, "log.connection.close": False}
# Reconnect within a second after a broker is back.
_FAST_RECONNECT = {"reconnect.backoff.max.ms": 1_000}


@dataclass(frozen=True)
class Connection:
    """The settings of connections to the brokers. It is pickled for tasks; its repr hides them."""

    # The declared source or sink; error messages begin with it.
    label: str
    brokers: str
    settings: Mapping[str, Any] = field(repr=False)
    # Values that must not appear in messages.
    secrets: tuple[str, ...] = field(repr=False, default=())

    @classmethod
    def from_options(
        cls, label: str, options: Mapping[str, Any], secrets: Mapping[str, str]
    ) -> Connection:
        """Create the connection of a source or sink; `secrets` has the values of secret options."""
        settings: dict[str, Any] = {
            **_NO_LOG,
            **_FAST_RECONNECT,
            "bootstrap.servers": options["brokers"],
        }
        protocol = options["security_protocol"]
        settings["security.protocol"] = protocol
        if protocol.startswith("sasl"):
            settings["sasl.mechanism"] = options["sasl_mechanism"].upper()
        for name in ("sasl_username", _SECRET_OPTION):
            if options[name] is not None:
                settings[name.replace("_", ".")] = options[name]
        settings |= options["kafka."] or {}
        values = tuple(value for value in secrets.values() if value)
        return cls(label, options["brokers"], settings, values)

    def describe(self, error: Any) -> str:
        """Return the text of a client error, without secrets."""
        text = error.str() if hasattr(error, "str") else str(error)
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def setting_error(self, error: Exception) -> TidegateError:
        """Return the error for settings that the client rejects."""
        reason = error.args[0] if error.args else error
        return RunError(
            "TG-207",
            f"{self.label} has a setting that the Kafka client rejects: {self.describe(reason)}",
            hint="options that begin with kafka. are settings of librdkafka.",
        )

    def unavailable(self, error: Any) -> SystemUnavailable:
        """Return the error for brokers that do not respond."""
        return SystemUnavailable(
            f"{self.label} cannot reach the brokers {self.brokers}: {self.describe(error)}",
            "start the broker, or correct the option brokers.",
        )

    def login_rejected(self, error: Any) -> TidegateError:
        """Return the error for a rejected login or missing permissions."""
        return RunError(
            "TG-512",
            f"the brokers {self.brokers} rejected the login of {self.label}: "
            f"{self.describe(error)}",
            hint="check sasl_username, sasl_password, sasl_mechanism and security_protocol.",
        )


class ClientErrors:
    """Collects the errors that a client reports to its error callback.

    The client retries by itself. Its calls only time out, so the reason must be remembered.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.login: Any = None
        # Whether the client has lost a connection.
        self.disturbed = False

    def __call__(self, error: Any) -> None:
        """Remember an error. The client calls this."""
        self.disturbed = True
        if is_login_error(error):
            self.login = error

    def error(self, failure: Any) -> TidegateError:
        """Return the error to raise for a call that failed."""
        if self.login is not None:
            return self.connection.login_rejected(self.login)
        return self.connection.unavailable(failure)


def is_login_error(error: Any) -> bool:
    """Return whether an error means a rejected login or missing permissions."""
    from confluent_kafka import KafkaError

    # "Local" means that the broker disconnected during the handshake: it rejected nothing.
    return "failed: Local: " not in (error.str() or "") and error.code() in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )


def require_client() -> None:
    """Check that confluent_kafka is installed; it comes with the extra `kafka`."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise RunError(
            "TG-521",
            "the Kafka client is not installed",
            hint="pip install 'tidegate[kafka]'.",
        ) from None


# ---- Metadata of topics, which the driver reads.

# A topic and a partition number.
Partition = tuple[str, int]
EARLIEST, LATEST = "earliest", "latest"


class Topics:
    """Reads the metadata of topics. Raises `SystemUnavailable` if brokers do not respond."""

    def __init__(self, connection: Connection) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self.connection = connection
        self.client_errors = ClientErrors(connection)
        try:
            settings: dict[str, Any] = {**connection.settings, "error_cb": self.client_errors}
            self.admin = AdminClient(settings)
        except Exception as error:
            raise connection.setting_error(error) from None

    def partitions(self) -> tuple[str, dict[str, int]]:
        """Return the cluster ID and the number of partitions of each topic."""
        from confluent_kafka import KafkaException

        try:
            metadata = self.admin.list_topics(timeout=RESPONSE_TIMEOUT_S)
        except KafkaException as error:
            self.admin.poll(0)
            raise self.client_errors.error(error.args[0]) from None
        counts = {
            name: len(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.error is None
        }
        return str(metadata.cluster_id), counts

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic IDs. A topic that was deleted and created again has another ID."""
        from confluent_kafka import TopicCollection

        futures = self.admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=RESPONSE_TIMEOUT_S
        )
        return {name: str(self._result(future).topic_id) for name, future in futures.items()}

    def offsets(self, partitions: Iterable[Partition], at: str | int) -> dict[Partition, int]:
        """Return the first or last offset of partitions, or the one at a time in milliseconds.

        The last offset is before the records of transactions that are not committed yet.
        """
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        specs: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        spec = getattr(specs, at)() if isinstance(at, str) else specs.for_timestamp(at)
        request = {TopicPartition(*partition): spec for partition in partitions}
        if not request:
            return {}
        futures = self.admin.list_offsets(
            request,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=RESPONSE_TIMEOUT_S,
        )
        return {
            (partition.topic, partition.partition): int(self._result(future).offset)
            for partition, future in futures.items()
        }

    def _result(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(2 * RESPONSE_TIMEOUT_S)
        except KafkaException as error:
            self.admin.poll(0)
            if is_login_error(error.args[0]):
                raise self.connection.login_rejected(error.args[0]) from None
            raise self.client_errors.error(error.args[0]) from None
        except TimeoutError:
            self.admin.poll(0)
            raise self.client_errors.error("no response") from None
