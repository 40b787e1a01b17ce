"""The NEXMark auction events as Spark SQL expressions over the event number.

Every value is a pure function of the event number and the seed, so a replay, a restart and a batch
run see the same rows, and Spark computes only the columns that a query reads. The events follow the
NEXMark generator of Beam and Flink: cycles of 50 events (1 person, 3 auctions, 46 bids), the same
hot keys, the same distributions. There are three deliberate differences: no event refers to a
person or an auction that does not exist yet (the original runs up to 10 ids ahead); event times are
microseconds instead of milliseconds, so that ties in time do not affect comparisons; text is picked
from small lists.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORY_COUNT = 5
ACTIVE_PEOPLE = 1000
IN_FLIGHT_AUCTIONS = 100
# One in HOT_STRIDE people or auctions is hot; a reference is to a hot one with probability
# 1 - 1/ratio.
HOT_STRIDE = 100
HOT_AUCTION_RATIO = 2
HOT_SELLER_RATIO = 4
HOT_BIDDER_RATIO = 4
HOT_CHANNEL_RATIO = 2
CHANNEL_COUNT = 10_000


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


HOT_CHANNELS = _list("Google,Facebook,Baidu,Apple")
STATES = _list("AZ,CA,ID,OR,WA,WY")
CITIES = _list(
    "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne"
)
FIRST_NAMES = _list("Peter,Paul,Luke,John,Saul,Vicky,Kate,Julie,Sarah,Deiter,Walter")
LAST_NAMES = _list("Shultz,Abrams,Spencer,White,Bartels,Walton,Smith,Jones,Noris")
WORDS = _list(
    "amber,basil,cedar,delta,ember,fjord,grove,heron,indigo,jade,kelp,lotus,maple,north,ochre,pearl"
)
PHRASES = _list(
    "in mint condition,lightly used,one owner,sold as is,ships worldwide,in original box,very rare"
)

_LOW_48_BITS = (1 << 48) - 1


@dataclass(frozen=True)
class CycleSlice:
    """The events of every cycle that belong to one table.

    A table numbers its own rows 0, 1, 2, ... The generator enumerates these *ranks*, so that it
    does not create events of other tables.
    """

    cycle: int
    first: int
    width: int

    def __post_init__(self) -> None:
        if not (self.first >= 0 and self.width >= 1 and self.first + self.width <= self.cycle):
            raise ValueError(f"a slice must lie within its cycle, got {self}")

    def rank(self, event: int) -> int:
        """Return how many rows of this table precede an event number."""
        cycles, offset = divmod(event, self.cycle)
        return cycles * self.width + max(0, min(offset - self.first, self.width))

    def rank_sql(self, event: str) -> str:
        """Return `rank` as a Spark SQL expression."""
        offset = f"{event} % {self.cycle} - {self.first}"
        return (
            f"{event} div {self.cycle} * {self.width} + greatest(least({offset}, {self.width}), 0)"
        )

    def cycle_sql(self, rank: str) -> str:
        """Return the expression of the cycle that contains the row with this rank."""
        return f"{rank} div {self.width}"

    def event_sql(self, rank: str) -> str:
        """Return the expression of the event number of the row with this rank."""
        return f"{self.cycle_sql(rank)} * {self.cycle}L + {self.first}L + {rank} % {self.width}"


@dataclass(frozen=True)
class EventFields:
    """The inputs of column expressions: columns of the enumeration, the seed and the event time."""

    rank: str
    cycle: str
    event: str
    seed: int
    time_us: str
    """Event time in microseconds, as an expression."""
    events_per_second: int

    def hash(self, field: str) -> str:
        """Return the expression of 64 pseudo-random bits for a field of this event."""
        return hash_sql(self.event, self.seed, field)


@dataclass(frozen=True)
class GeneratedTable:
    """A generated table: its events, its columns, and their expressions."""

    cycle_slice: CycleSlice
    columns: tuple[tuple[str, str], ...]
    expressions: Callable[[EventFields], Mapping[str, str]]


def hash_sql(value: str, seed: int, field: str) -> str:
    """Return the expression of 64 pseudo-random bits.

    Seed and field form one literal, so that Spark hashes one value less per row.
    """
    return f"xxhash64({value}, {zlib.crc32(f'{seed}/{field}'.encode())}L)"


def pick_sql(bits: str, count: int | str) -> str:
    """Return the expression of a number in [0, count), from the low 48 bits."""
    return f"(({bits} & {_LOW_48_BITS}L) % {count})"


def unit_sql(bits: str) -> str:
    """Return the expression of a double in [0, 1), from the high 53 bits."""
    return f"(shiftrightunsigned({bits}, 11) * {2.0**-53!r}D)"


def _is_hot(bits: str, ratio: int) -> str:
    # Uses the high 16 bits, so that it is independent of `pick_sql` for the same hash.
    return f"shiftrightunsigned({bits}, 48) % {ratio} > 0"


def _one_of(values: tuple[str, ...], bits: str, shift: int = 0) -> str:
    literals = ", ".join(f"'{value}'" for value in values)
    return f"array({literals})[(shiftrightunsigned({bits}, {shift}) & 65535L) % {len(values)}]"


def _price(bits: str) -> str:
    # 100 to 100,000,000 with uniformly distributed logarithms. Spark's round() of a double uses
    # BigDecimal, and pow() costs twice as much as exp(): with them this column cost more than all
    # others together.
    return f"cast(exp({unit_sql(bits)} * {math.log(1e6)!r}D) * 100 + 0.5D AS BIGINT)"


def _extra(fields: EventFields, average_size: int) -> str:
    """Return filler text of about average_size ± 20 %, as in the original."""
    # 12 hexadecimal digits and 7 to 15 more, repeated. Truncating a longer text would cost three
    # times as much, because Spark's substring functions scan it character by character.
    head, tail = fields.hash("extra"), fields.hash("extra tail")
    shift = f"cast(4 + 4 * {pick_sql(head, 9)} AS INT)"
    digits = f"hex(shiftrightunsigned({head}, 16)), hex(shiftrightunsigned({tail}, {shift}))"
    return f"repeat(concat({digits}), {round(average_size / 23)})"


def _active_person(cycle: str, bits: str) -> str:
    # Every cycle begins with its person, so the newest person has the number of the cycle.
    active = f"least({cycle} + 1, {ACTIVE_PEOPLE}L)"
    return f"{cycle} + 1 - {active} + {pick_sql(bits, active)}"


def _in_flight_auction(newest: str, bits: str) -> str:
    oldest = f"greatest({newest} - {IN_FLIGHT_AUCTIONS}, 0L)"
    return f"{oldest} + {pick_sql(bits, f'({newest} - {oldest} + 1)')}"


def _hot(number: str) -> str:
    return f"{number} div {HOT_STRIDE} * {HOT_STRIDE}"


def _person(fields: EventFields) -> Mapping[str, str]:
    name, email, card = (fields.hash(field) for field in ("name", "email", "credit card"))
    digits = (
        f"lpad(cast((shiftrightunsigned({card}, {shift}) & 65535L) % 10000 AS STRING), 4, '0')"
        for shift in (0, 16, 32, 48)
    )
    return {
        "id": f"{FIRST_ID} + {fields.rank}",
        "name": f"concat({_one_of(FIRST_NAMES, name)}, ' ', {_one_of(LAST_NAMES, name, 16)})",
        "email_address": f"concat({_one_of(WORDS, email)}, '@', "
        f"{_one_of(WORDS, email, 16)}, '.com')",
        "credit_card": f"concat_ws(' ', {', '.join(digits)})",
        "city": _one_of(CITIES, fields.hash("city")),
        "state": _one_of(STATES, fields.hash("state")),
        "date_time": f"timestamp_micros({fields.time_us})",
        "extra": _extra(fields, 137),
    }


def _auction(fields: EventFields) -> Mapping[str, str]:
    item, text, seller = (fields.hash(field) for field in ("item", "description", "seller"))
    phrases = ", ".join(_one_of(PHRASES, text, shift) for shift in (0, 16, 32, 48))
    initial_bid = _price(fields.hash("initial bid"))
    # On average an auction stays open until IN_FLIGHT_AUCTIONS more have been opened.
    horizon_ms = IN_FLIGHT_AUCTIONS * 50 // 3 * 1000 // fields.events_per_second
    open_ms = f"1 + {pick_sql(fields.hash('expires'), max(2 * horizon_ms, 1))}"
    return {
        "id": f"{FIRST_ID} + {fields.rank}",
        "item_name": f"concat({_one_of(WORDS, item)}, ' ', {_one_of(WORDS, item, 16)})",
        "description": f"concat_ws(', ', {phrases})",
        "initial_bid": initial_bid,
        "reserve": f"{initial_bid} + {_price(fields.hash('reserve'))}",
        "date_time": f"timestamp_micros({fields.time_us})",
        "expires": f"timestamp_micros({fields.time_us} + ({open_ms}) * 1000)",
        "seller": f"{FIRST_ID} + if({_is_hot(seller, HOT_SELLER_RATIO)}, {_hot(fields.cycle)}, "
        f"{_active_person(fields.cycle, seller)})",
        "category": f"{FIRST_CATEGORY} + {pick_sql(fields.hash('category'), CATEGORY_COUNT)}",
        "extra": _extra(fields, 390),
    }


def _bid(fields: EventFields) -> Mapping[str, str]:
    auction, bidder = (fields.hash(field) for field in ("auction", "bidder"))
    newest = f"({fields.cycle} * 3 + 2)"
    # Hot bidders are the second of every hundred people, so that they are not the hot sellers. At
    # the beginning, when there is only one person, it is the first.
    hot_bidder = f"least({_hot(fields.cycle)} + 1, {fields.cycle})"
    channel = _channel_number(fields.hash("channel"))
    return {
        "auction": f"{FIRST_ID} + if({_is_hot(auction, HOT_AUCTION_RATIO)}, {_hot(newest)}, "
        f"{_in_flight_auction(newest, auction)})",
        "bidder": f"{FIRST_ID} + if({_is_hot(bidder, HOT_BIDDER_RATIO)}, {hot_bidder}, "
        f"{_active_person(fields.cycle, bidder)})",
        "price": _price(fields.hash("price")),
        "channel": _channel_name(channel),
        "url": _url(channel, hash_sql(channel, fields.seed, "url")),
        "date_time": f"timestamp_micros({fields.time_us})",
        "extra": _extra(fields, 68),
    }


def _channel_number(bits: str) -> str:
    """Return the expression of a channel: 0, 1, 2, ... for small ones, -1 to -4 for hot ones."""
    hot = f"-1 - {pick_sql(bits, len(HOT_CHANNELS))}"
    return f"if({_is_hot(bits, HOT_CHANNEL_RATIO)}, {hot}, {pick_sql(bits, CHANNEL_COUNT)})"


def _channel_name(channel: str) -> str:
    literals = ", ".join(f"'{value}'" for value in HOT_CHANNELS)
    return (
        f"if({channel} < 0, array({literals})[-1 - {channel}], "
        f"concat('channel-', cast({channel} AS STRING)))"
    )


def _url(channel: str, bits: str) -> str:
    """Return the URL of a channel. 90 % of the small channels have an id in it (for query 21)."""
    path = ", '/', ".join(_one_of(WORDS, bits, shift) for shift in (0, 16, 32))
    named = f"{channel} >= 0 AND {pick_sql(bits, 10)} > 0"
    channel_id = f"concat('&channel_id=', cast(shiftrightunsigned({bits}, 33) AS STRING))"
    return (
        f"concat('https://www.nexmark.com/', {path}, '/item.htm?query=1', "
        f"if({named}, {channel_id}, ''))"
    )


TABLES: Mapping[str, GeneratedTable] = {
    "person": GeneratedTable(
        CycleSlice(cycle=50, first=0, width=1),
        (
            ("id", "BIGINT"),
            ("name", "STRING"),
            ("email_address", "STRING"),
            ("credit_card", "STRING"),
            ("city", "STRING"),
            ("state", "STRING"),
            ("date_time", "TIMESTAMP"),
            ("extra", "STRING"),
        ),
        _person,
    ),
    "auction": GeneratedTable(
        CycleSlice(cycle=50, first=1, width=3),
        (
            ("id", "BIGINT"),
            ("item_name", "STRING"),
            ("description", "STRING"),
            ("initial_bid", "BIGINT"),
            ("reserve", "BIGINT"),
            ("date_time", "TIMESTAMP"),
            ("expires", "TIMESTAMP"),
            ("seller", "BIGINT"),
            ("category", "BIGINT"),
            ("extra", "STRING"),
        ),
        _auction,
    ),
    "bid": GeneratedTable(
        CycleSlice(cycle=50, first=4, width=46),
        (
            ("auction", "BIGINT"),
            ("bidder", "BIGINT"),
            ("price", "BIGINT"),
            ("channel", "STRING"),
            ("url", "STRING"),
            ("date_time", "TIMESTAMP"),
            ("extra", "STRING"),
        ),
        _bid,
    ),
}
