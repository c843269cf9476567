"""What a client makes of the announcements of sentinels, without a server."""

import pytest

from queasy.store.net.pool import AsyncTransport
from queasy.store.net.sentinel_watch import GIVEN_UP, PROMOTED, PROMOTING, SWITCHED, SentinelWatch
from queasy.store.net.server_errors import ResponseError
from queasy.store.net.topology import Exchange, SentinelRoute
from queasy.store.net.url import Address, parse_url

TARGET = parse_url("redis+sentinel://one:1,two:2,three:3/jobs")
ONE, TWO, THREE = TARGET.addresses
OLD, NEW = Address("10.0.0.1", 6379), Address("10.0.0.2", 6379)
SWITCH = "jobs 10.0.0.1 6379 10.0.0.2 6379"
REPLICA = "slave 10.0.0.2:6379 10.0.0.2 6379 @ jobs 10.0.0.1 6379"


class Watched:
    """A route whose first primary is OLD, and the servers that its client left."""

    def __init__(self) -> None:
        self.route = SentinelRoute(TARGET)
        self.left: list[Address] = []
        transport = AsyncTransport(TARGET, 1.0, None)
        self._watch = SentinelWatch(transport, self.route, self.left.append)
        for sentinel in TARGET.addresses:
            self.route.sentinel_heard(sentinel)
        self.answers = dict.fromkeys(TARGET.addresses, OLD)
        self.asked: list[Address] = []
        assert self.locate() == OLD

    def hear(self, channel: str, text: str, sentinel: Address = TWO) -> None:
        self._watch._hear(sentinel, channel, text)

    def locate(self) -> Address:
        """Locates the primary; sentinels answer as `answers` says, and are recorded."""
        self.asked = []
        steps = self.route.locate(None)
        answer = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as done:
                return done.value
            assert isinstance(effect, Exchange)
            self.asked.append(effect.address)
            named = self.answers[effect.address]
            answer = [[named.host.encode(), str(named.port).encode()]]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_address_is_kept_while_a_sentinel_is_heard(watched: Watched) -> None:
    watched.route.sentinel_lost(ONE)
    watched.route.sentinel_lost(TWO)
    assert watched.route.known == OLD
    assert (watched.locate(), watched.asked) == (OLD, [])


def test_sentinels_are_asked_each_time_while_none_is_heard(watched: Watched) -> None:
    for sentinel in TARGET.addresses:
        watched.route.sentinel_lost(sentinel)
    for _ in range(2):
        assert watched.route.known is None
        assert watched.locate() == OLD
        assert len(watched.asked) == 1


@pytest.mark.parametrize(("channel", "text"), [(SWITCHED, SWITCH), (PROMOTED, REPLICA)])
def test_client_leaves_the_old_primary_and_asks_the_sentinel_that_announced_it(
    watched: Watched, channel: str, text: str
) -> None:
    watched.answers[TWO] = NEW  # the others have not learned of it yet
    watched.hear(channel, text)
    assert watched.left == [NEW]
    assert (watched.locate(), watched.asked) == (NEW, [TWO])


def test_primary_that_was_replaced_is_used_only_if_all_sentinels_name_it(watched: Watched) -> None:
    watched.hear(SWITCHED, SWITCH)
    watched.answers[THREE] = NEW
    assert watched.locate() == NEW
    watched.answers[THREE] = OLD  # it has become the primary again, and no announcement came
    watched.route.forget()
    assert (watched.locate(), len(watched.asked)) == (OLD, 3)


def test_second_announcement_of_a_switch_changes_nothing(watched: Watched) -> None:
    watched.answers = dict.fromkeys(TARGET.addresses, NEW)
    watched.hear(SWITCHED, SWITCH)
    watched.locate()
    watched.hear(SWITCHED, SWITCH, THREE)
    assert (watched.route.known, watched.left) == (NEW, [NEW])


def test_calls_are_held_until_the_promotion_ends(watched: Watched) -> None:
    watched.hear(PROMOTING, REPLICA)
    with pytest.raises(ResponseError, match="FAILOVER"):
        watched.locate()
    watched.answers = dict.fromkeys(TARGET.addresses, NEW)
    watched.hear(PROMOTED, REPLICA)
    assert watched.locate() == NEW


def test_calls_go_on_when_the_promotion_is_given_up(watched: Watched) -> None:
    watched.hear(PROMOTING, REPLICA)
    watched.hear(GIVEN_UP, "master jobs 10.0.0.1 6379")
    assert (watched.locate(), watched.left) == (OLD, [])


def test_calls_are_not_held_for_ever(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queasy.store.net.topology.HOLD_SECONDS", 0.0)
    watched.hear(PROMOTING, REPLICA)
    assert watched.locate() == OLD


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        (SWITCHED, SWITCH.replace("jobs", "other")),
        (PROMOTING, REPLICA.replace("jobs", "other")),
        (GIVEN_UP, "master other 10.0.0.1 6379"),
        (SWITCHED, ""),
        (SWITCHED, "jobs 10.0.0.1 x 10.0.0.2 y"),
        (PROMOTED, "@"),
    ],
)
def test_announcement_about_another_service_or_in_another_form_is_ignored(
    watched: Watched, channel: str, text: str
) -> None:
    watched.hear(channel, text)
    assert (watched.route.known, watched.left) == (OLD, [])


def test_last_primary_stays_in_use_while_no_sentinel_can_be_reached(watched: Watched) -> None:
    for sentinel in TARGET.addresses:
        watched.route.sentinel_lost(sentinel)
        watched.route.sentinel_away(sentinel)
    assert (watched.locate(), watched.asked) == (OLD, [])


def test_all_sentinels_are_asked_again_after_a_failed_call(watched: Watched) -> None:
    for sentinel in TARGET.addresses:
        watched.route.sentinel_lost(sentinel)
        watched.route.sentinel_away(sentinel)
    watched.answers = dict.fromkeys(TARGET.addresses, NEW)
    watched.route.forget(OLD)
    assert watched.locate() == NEW


def test_lost_connection_to_the_primary_makes_the_client_ask(watched: Watched) -> None:
    assert watched.route.on_connection_lost is not None
    watched.route.on_connection_lost(NEW)
    assert watched.route.known == OLD
    watched.route.on_connection_lost(OLD)
    assert watched.route.known is None


def test_answer_that_an_announcement_overtook_is_not_used(watched: Watched) -> None:
    watched.route.forget()
    steps = watched.route.locate(None)
    next(steps)
    watched.hear(SWITCHED, SWITCH)
    # The question was older than the announcement, its answer is, too.
    second = steps.send([[b"10.0.0.1", b"6379"]])
    third = steps.send([[b"10.0.0.2", b"6379"]])
    assert (second.address, third.address) == (TWO, TWO)  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as done:
        steps.send([[b"10.0.0.2", b"6379"]])
    assert (done.value.value, watched.route.known) == (NEW, NEW)
