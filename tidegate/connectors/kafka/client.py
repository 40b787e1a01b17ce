"""The client of a Kafka source or sink: its settings, and what goes wrong with it in our words.

Tasks import this module: it must load little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import RunError, SystemAway, TidegateError

# How long a broker may take to answer.
ANSWER_SECONDS = 10.0
_SECRET_OPTION = "sasl_password"
# What the client itself says would go to the standard error of whoever runs it.
_QUIET = {"log_level": 0, "log.connection.close": False}
# A broker that is back is found within a second.
_SOON = {"reconnect.backoff.max.ms": 1_000}


@dataclass(frozen=True)
class Connection:
    """How to reach the brokers; goes to tasks, and never shows its settings."""

    owner: str
    brokers: str
    settings: Mapping[str, Any] = field(repr=False)
    # Values that no message may hold.
    secrets: tuple[str, ...] = field(repr=False, default=())

    @classmethod
    def of(cls, owner: str, options: Mapping[str, Any], hidden: Mapping[str, str]) -> Connection:
        """`hidden` are the options whose values are never shown, as they were given."""
        settings: dict[str, Any] = {**_QUIET, **_SOON, "bootstrap.servers": options["brokers"]}
        protocol = options["security_protocol"]
        settings["security.protocol"] = protocol
        if protocol.startswith("sasl"):
            settings["sasl.mechanism"] = options["sasl_mechanism"].upper()
        for name in ("sasl_username", _SECRET_OPTION):
            if options[name] is not None:
                settings[name.replace("_", ".")] = options[name]
        settings |= options["kafka."] or {}
        secrets = tuple(value for value in hidden.values() if value)
        return cls(owner, options["brokers"], settings, secrets)

    def told(self, error: Any) -> str:
        """What the client says of an error, without secrets."""
        text = error.str() if hasattr(error, "str") else str(error)
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def rejected(self, error: Exception) -> TidegateError:
        """Settings that the client does not take."""
        reason = error.args[0] if error.args else error
        return RunError(
            "TG-207",
            f"{self.owner} has a setting that the client does not take: {self.told(reason)}",
            hint="the settings behind kafka. are those of librdkafka.",
        )

    def away(self, error: Any) -> SystemAway:
        return SystemAway(
            f"{self.owner} cannot reach the brokers {self.brokers}: {self.told(error)}",
            "start the broker, or correct the option brokers.",
        )

    def login_rejected(self, error: Any) -> TidegateError:
        return RunError(
            "TG-512",
            f"{self.owner} is not let in by the brokers {self.brokers}: {self.told(error)}",
            hint="check sasl_username, sasl_password, sasl_mechanism and security_protocol.",
        )


class ClientErrors:
    """What a client has complained of on its own; it keeps trying, and its calls only time out."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.login: Any = None
        # Whether a connection was lost.
        self.disturbed = False

    def __call__(self, error: Any) -> None:
        self.disturbed = True
        if is_login(error):
            self.login = error

    def error(self, failure: Any) -> TidegateError:
        """The error of a call that failed."""
        if self.login is not None:
            return self.connection.login_rejected(self.login)
        return self.connection.away(failure)


def is_login(error: Any) -> bool:
    """Whether an error says that somebody may not do this."""
    from confluent_kafka import KafkaError

    # A broker that goes away while it is asked how to log in has rejected nobody.
    return "failed: Local: " not in (error.str() or "") and error.code() in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )


def require_client() -> None:
    """The client is not installed with Tidegate itself."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise RunError(
            "TG-521",
            "the client for Kafka is not installed",
            hint="pip install 'tidegate[kafka]'.",
        ) from None


# ---- What a driver asks the brokers: which partitions there are, and how far they are.

# A topic and the number of a partition.
Place = tuple[str, int]
EARLIEST, LATEST = "earliest", "latest"


class Topics:
    """Asks brokers; what they do not answer is a `SystemAway`."""

    def __init__(self, connection: Connection) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self.connection = connection
        self.complaints = ClientErrors(connection)
        try:
            settings: dict[str, Any] = {**connection.settings, "error_cb": self.complaints}
            self.admin = AdminClient(settings)
        except Exception as error:
            raise connection.rejected(error) from None

    def partitions(self) -> tuple[str, dict[str, int]]:
        """The id of the cluster, and how many partitions each topic has."""
        from confluent_kafka import KafkaException

        try:
            found = self.admin.list_topics(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            self.admin.poll(0)
            raise self.complaints.error(error.args[0]) from None
        counts = {
            name: len(topic.partitions)
            for name, topic in found.topics.items()
            if topic.error is None
        }
        return str(found.cluster_id), counts

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """What tells a topic from one of its name that was created later."""
        from confluent_kafka import TopicCollection

        asked = self.admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=ANSWER_SECONDS
        )
        return {name: str(self._result(future).topic_id) for name, future in asked.items()}

    def offsets(self, places: Iterable[Place], at: str | int) -> dict[Place, int]:
        """The first or the last offset, or that of a time in milliseconds; what transactions have
        not committed yet is behind the end."""
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        specs: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        spec = getattr(specs, at)() if isinstance(at, str) else specs.for_timestamp(at)
        wanted = {TopicPartition(*place): spec for place in places}
        if not wanted:
            return {}
        asked = self.admin.list_offsets(
            wanted,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_SECONDS,
        )
        return {
            (place.topic, place.partition): int(self._result(future).offset)
            for place, future in asked.items()
        }

    def _result(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(2 * ANSWER_SECONDS)
        except KafkaException as error:
            self.admin.poll(0)
            if is_login(error.args[0]):
                raise self.connection.login_rejected(error.args[0]) from None
            raise self.complaints.error(error.args[0]) from None
        except TimeoutError:
            self.admin.poll(0)
            raise self.complaints.error("they do not answer") from None
