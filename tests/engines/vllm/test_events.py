# SPDX-License-Identifier: Apache-2.0
"""KV events: the index of each engine's subscriber has all pages of the pool, from any engine. With
vLLM's own schedulers and publishers, and with whole engines."""
import contextlib
import random
import threading

import life
import msgspec
import pytest
import subscriber
from conftest import PAGE, events, geometry
from engine import counters, prompt, until
from measure_step import Scheduler, specs
from subscriber import Subscriber, cached

from kvtrunk import testing
from kvtrunk.engine._server import free_port
from kvtrunk.vllm import _events

PAGES, LONGEST = 40, 7 * PAGE


class NoPool:
    """A stand-in for life.Engine's pool, which compares no reused positions."""

    def expect(self, row):
        """Nothing to compare."""


class Engine(life.Engine):
    """A scheduler with a publisher, and a worker that answers with tokens by chance."""

    def __init__(self, folder, path, chance, asynchronous=False, **options):
        super().__init__(folder, NoPool(), chance, asynchronous, **{
            "pages": PAGES, "max_model_len": LONGEST, "max_num_seqs": 6,
            "max_num_batched_tokens": 72, "kv_events_config": subscriber.config(path), **options})

    def compute(self, step, known):
        """A step's output."""
        self.follow(step, known)
        sampled = []
        for name, n in step.num_scheduled_tokens.items():
            row = self.rows[name]
            row.computed += n
            ends = row.computed >= len(row.tokens)
            sampled.append([self.chance.randrange(2)] if ends else [])
            row.tokens += sampled[-1]
        self.answer(step, sampled)


@contextlib.contextmanager
def pair(folder, monkeypatch, tmp_path, asynchronous=False, **options):
    """A daemon, two engines on it, and their subscribers."""
    chance = random.Random(0)
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES, **options)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        paths = [tmp_path / name for name in "ab"]
        engines = [Engine(folder, path, chance, asynchronous) for path in paths]
        subscribers = [Subscriber(path) for path in paths]
        yield daemon, engines, subscribers
        for each in (*subscribers, *(engine.theirs for engine in engines)):
            (each.close if isinstance(each, Subscriber) else each.shutdown)()


def agree(daemon, subscribers, behind=0):
    """Until each subscriber has what is cached."""
    def same():
        have = cached(daemon, behind)
        return all({tokens for tokens, *_ in each.follow().prompts()} == have
                   for each in subscribers)
    until(same)


def ask(chance, engines, n=60):
    """Random prompts, which share beginnings."""
    heads = [chance.choices((0, 1), k=4 * PAGE) for _ in range(3)]
    life.run(chance, engines, n, lambda: (
        chance.choice(heads)[:chance.randrange(1, 5) * PAGE + chance.choice((-1, 0, 1))] +
        chance.choices((0, 1), k=chance.choice((1, 2, 33))), chance.choice((1, 2, 40))))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_each_engine_tells_what_the_pool_has(folder, monkeypatch, tmp_path, asynchronous):
    chance = random.Random(1)
    with pair(folder, monkeypatch, tmp_path, asynchronous) as (daemon, engines, subscribers):
        for reset in (False, True, False):
            ask(chance, engines)
            agree(daemon, subscribers)
            if reset:
                with daemon.connect() as client:
                    client.reset()
                agree(daemon, subscribers)
        assert counters(daemon).evicted_pages
        assert [each.cleared for each in subscribers] == [2, 2]


@pytest.mark.parametrize("supervise", [True, False], ids=["kept", "cold"])
def test_a_daemon_that_restarts_is_followed(folder, monkeypatch, tmp_path, supervise):
    chance = random.Random(2)
    with pair(folder, monkeypatch, tmp_path, supervise=supervise) as (daemon, engines, subscribers):
        for _ in range(2):
            ask(chance, engines, 20)
            agree(daemon, subscribers)
            assert subscribers[0].blocks
            before = [each.cleared for each in subscribers]
            if supervise:
                daemon.kill()
            else:
                daemon.restart()
            until(lambda now=before: [each.follow().cleared for each in subscribers] ==
                  [n + 1 for n in now])
            agree(daemon, subscribers)
            assert bool(subscribers[1].blocks) == supervise


def test_behind_a_publisher_that_was_held_up_all_is_told_again(folder, monkeypatch, tmp_path):
    chance, reached, opened = random.Random(6), threading.Event(), threading.Event()
    with pair(folder, monkeypatch, tmp_path, feed_bytes="1M") as (daemon, engines, subscribers):
        ask(chance, engines, 10)
        agree(daemon, subscribers)
        publisher = engines[0].theirs.kv_event_publisher
        publish = publisher.publish

        def held(batch):
            reached.set()
            opened.wait()
            publish(batch)

        monkeypatch.setattr(publisher, "publish", held)
        with daemon.connect(any_geometry=True) as client:
            ask(chance, engines, 10)
            until(reached.is_set)
            space, before = client.namespace(model="another"), client.stats().evicted_pages
            while (client.stats().evicted_pages - before) * PAGE * 4 < 1 << 20:
                with space.begin([chance.randrange(1 << 20) for _ in range(LONGEST)]) as seq:
                    seq.end(LONGEST)
            space.remove_all()
        opened.set()
        ask(chance, engines, 10)
        agree(daemon, subscribers)
        assert subscribers[0].cleared >= 2


def test_without_a_publisher_that_works_requests_are_served(folder, monkeypatch, tmp_path):
    chance, said = random.Random(9), []

    def fail(_):
        raise TypeError("it knows no such event")

    monkeypatch.setattr(_events.logger, "exception", said.append)
    with pair(folder, monkeypatch, tmp_path) as (daemon, engines, subscribers):
        monkeypatch.setattr(engines[0].theirs.kv_event_publisher, "publish", fail)
        ask(chance, engines, 10)
        until(lambda: said)
        assert "KV events have stopped" in said[0]
        ask(chance, engines, 10)
        agree(daemon, subscribers[1:])


def test_each_data_parallel_rank_tells_at_ports_of_its_own(monkeypatch, tmp_path):
    import model

    folder = model.write(tmp_path, **model.experts())  # ranks of others are servers of their own
    chance, first = random.Random(7), free_port(1, 2, 3)
    replay = first + 2
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engines = [Engine(folder, None, chance, data_parallel_size=2, data_parallel_rank=rank,
                          **events(first, replay)) for rank in range(2)]
        subscribers = [Subscriber(replay=f"tcp://127.0.0.1:{replay + rank}", rank=rank)
                       for rank in range(2)]
        ask(chance, engines, 20)
        agree(daemon, subscribers)
        assert subscribers[0].blocks
        for each in (*subscribers, *(engine.theirs for engine in engines)):
            (each.close if isinstance(each, Subscriber) else each.shutdown)()


def test_one_of_two_ranks_of_a_model_tells(folder, monkeypatch, tmp_path):
    chance = random.Random(8)
    with testing.daemon(**geometry(kv_heads=1, n_slabs=2, n_pages=PAGES,
                                   max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Engine(folder, tmp_path / "a", chance, tensor_parallel_size=2)
        reader = Subscriber(tmp_path / "a")
        ask(chance, [engine], 20)
        agree(daemon, [reader])
        assert reader.blocks
        reader.close()
        engine.theirs.shutdown()


def singly(stored):
    """Events of one block each. How blocks are put together, and which come first, depends on when
    the thread learns of a tree and of a path that forks."""
    found = []
    for event in stored:
        parents, size = [event.parent_block_hash, *event.block_hashes], event.block_size
        found += [msgspec.structs.replace(
            event, block_hashes=[block], parent_block_hash=parents[i],
            token_ids=event.token_ids[i * size:(i + 1) * size], extra_keys=[event.extra_keys[i]])
            for i, block in enumerate(event.block_hashes)]
    return sorted(found, key=repr)


def test_blocks_are_told_as_vllm_alone_tells_them(folder, monkeypatch, tmp_path):
    tokens, salted = prompt(1, 3 * PAGE + 5), prompt(2, 2 * PAGE + 1)
    told = []
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        for shared in (True, False):
            path = tmp_path / str(shared)
            made = Scheduler(folder, shared, pages=PAGES, kv_events_config=subscriber.config(path))
            reader = Subscriber(path)
            for name, asked, salt in (("1", tokens, None), ("2", salted, "blue"),
                                      ("3", tokens[:PAGE] + salted, None)):
                request = made.request(name, asked, 1)
                request.cache_salt = salt
                if salt:
                    request.block_hashes.clear()
                    request.update_block_hashes()
                run(made.theirs, request)
            until(lambda reader=reader: len(reader.follow().blocks) == 7)
            told.append(reader.events)
            reader.close()
            made.theirs.shutdown()
    assert told[0].pop(0) == subscriber.AllBlocksCleared()
    assert singly(told[0]) == singly(told[1]) and len(told[1]) == 3


def test_what_a_request_reuses_is_told_again_if_it_asks_for_that(folder, monkeypatch, tmp_path):
    tokens, told = prompt(1, 3 * PAGE + 5), []
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        for shared in (True, False):
            path = tmp_path / str(shared)
            made = Scheduler(folder, shared, pages=PAGES, kv_events_config=subscriber.config(path))
            reader = Subscriber(path, again=True)
            for name, mode in enumerate(("full", "incremental", "full")):
                # Not whole pages: vLLM alone computes the last of them again, and tells that, too.
                request = made.request(str(name), tokens[:2 * PAGE + 5] if name == 2 else tokens, 1)
                request.kv_cache_report_mode = mode
                run(made.theirs, request)
                n = [3, 3, 5][name]
                until(lambda reader=reader, n=n: n == sum(
                    len(event.block_hashes) for event in reader.follow().events
                    if event != subscriber.AllBlocksCleared()))
            told.append(reader.events)
            reader.close()
            made.theirs.shutdown()
    assert told[0].pop(0) == subscriber.AllBlocksCleared()
    assert singly(told[0]) == singly(told[1]) and len(singly(told[1])) == 5


def run(scheduler, request):
    """A request of one token, alone."""
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler.add_request(request)
    while scheduler.has_unfinished_requests():
        step = scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        scheduler.update_from_output(step, ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)}, [[7] for _ in names]))


def test_salts_and_adapters_are_told_by_engines_that_know_them(folder, monkeypatch, tmp_path):
    from vllm.lora.request import LoRARequest

    with pair(folder, monkeypatch, tmp_path) as (daemon, engines, subscribers):
        tokens = prompt(3, PAGE + 1)
        for engine, asked in zip(engines, ([None, "blue", "lora"], [])):
            for name, salt in enumerate(asked):
                request = engine.request(str(name), tokens, 1)
                if salt == "lora":
                    engine.theirs.kv_cache_manager.engine._adapters.load({1: "its digest"})
                    request.lora_request = LoRARequest("fables", 1, str(tmp_path))
                else:
                    request.cache_salt = salt
                run(engine.theirs, request)
        page = tuple(tokens[:PAGE])
        until(lambda: len(subscribers[0].follow().blocks) == 3)
        assert subscribers[0].prompts() == {(page, None, None), (page, ("blue",), None),
                                            (page, ("fables",), "fables")}
        until(lambda: len(subscribers[1].follow().blocks) == 1)
        request = engines[1].request("1", tokens, 1)
        request.cache_salt = "blue"
        run(engines[1].theirs, request)  # finds it
        until(lambda: len(subscribers[1].follow().blocks) == 2)
        engines[0].theirs.reset_prefix_cache()
        until(lambda: subscribers[0].follow().cleared == 2)
        assert not subscribers[0].blocks and len(subscribers[1].follow().blocks) == 2


def test_side_pages_are_not_told(folder, monkeypatch, tmp_path):
    from test_hybrid_life import KINDS

    kind = KINDS["window"]
    with testing.daemon(**kind.geometry()) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        engine = Engine(folder, tmp_path / "a", random.Random(0), pages=kind.pages, page=kind.page,
                        sides=specs(*kind.groups), max_model_len=kind.longest * kind.page)
        reader = Subscriber(tmp_path / "a")
        ask(random.Random(4), [engine], 20)
        agree(daemon, [reader])
        assert counters(daemon).side_pages
        assert {(event.group_idx, event.kv_cache_spec_kind) for event in reader.events
                if hasattr(event, "kv_cache_spec_kind")} == {(0, "full_attention")}
        reader.close()
        engine.theirs.shutdown()


def test_with_draft_layers_tokens_are_told_once(folder, monkeypatch, tmp_path):
    import model

    (tmp_path / "head").mkdir()
    head = model.write_eagle(tmp_path / "head")
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        made = Scheduler(folder, True, pages=PAGES, kv_events_config=subscriber.config(tmp_path / "a"),
                         speculative_config={"method": "eagle", "model": str(head),
                                             "num_speculative_tokens": 1})
        reader, tokens = Subscriber(tmp_path / "a"), prompt(5, 2 * PAGE)
        for name, last in enumerate((8, 9)):  # pages that differ in the token behind them
            run(made.theirs, made.request(str(name), [*tokens, last, 1, 1], 1))
        agree(daemon, [reader], behind=1)
        assert counters(daemon).cached_pages == 3 and len(reader.blocks) == 2
        reader.close()
        made.theirs.shutdown()


@pytest.mark.parametrize("options,says", [({"feed_bytes": 0}, "feed_bytes"),
                                          ({"arena_visible": "no"}, "arena_visible")])
def test_a_daemon_without_a_feed_is_refused(folder, monkeypatch, tmp_path, options, says):
    with testing.daemon(**geometry(**options)) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        with pytest.raises(ValueError, match=f"--kv-events-config: .*{says}"):
            Scheduler(folder, True, kv_events_config=subscriber.config(tmp_path / "a"))


def test_whole_engines_tell_what_the_other_computed(start, tmp_path):
    with testing.daemon(**geometry()) as daemon:
        engines = [start(daemon, kv_events_config=subscriber.config(tmp_path / name))
                   for name in "ab"]
        for engine in engines:
            engine.wait()
        subscribers = [Subscriber(tmp_path / name) for name in "ab"]
        engines[0].generate(prompt(1), prompt(2, 500))
        agree(daemon, subscribers)
        assert len(subscribers[1].blocks) > 20
        engines[1].generate(prompt(2, 500) + prompt(3))
        agree(daemon, subscribers)
        engines[0].kill()
        engines[1].generate(prompt(4))
        agree(daemon, subscribers[1:])
