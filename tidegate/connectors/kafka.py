"""Kafka topics. The options are checked; reading and writing is not built yet."""

from __future__ import annotations

from tidegate.catalog.connector import ANY_KIND, ConnectorSpec, SinkSpec, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType

_COMMON = (
    OptionSpec("brokers", OptionType.TEXT, "host:port of the brokers, with commas", required=True),
    OptionSpec("topic", OptionType.TEXT, "the topic", required=True),
    OptionSpec(
        "format",
        OptionType.TEXT,
        "how records are written",
        default="json",
        choices=("json", "csv"),
    ),
    OptionSpec("sasl_username", OptionType.TEXT, "the user to log in as"),
    OptionSpec("sasl_password", OptionType.TEXT, "the password to log in with", secret=True),
    OptionSpec(
        "security_protocol",
        OptionType.TEXT,
        "how the connection is secured",
        default="plaintext",
        choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    ),
)

SPEC = ConnectorSpec(
    "kafka",
    "topics of Apache Kafka",
    source=SourceSpec(
        (
            *_COMMON,
            OptionSpec(
                "start",
                OptionType.TEXT,
                "where to begin when there is no checkpoint",
                default="earliest",
                choices=("earliest", "latest"),
            ),
        ),
        identity=("brokers", "topic"),
        built=False,
    ),
    sink=SinkSpec(_COMMON, accepts=lambda _: ANY_KIND, built=False),
)
