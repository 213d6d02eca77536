"""Bad input: one clear line on standard error, a status that is not 0, nothing left behind, never a traceback."""

from __future__ import annotations

import pytest
from command import Kvtwin, in_folder, refusals, row, write_trace
from omegaconf import DictConfig, OmegaConf

from core.errors import InputError
from kvtwin.binding import instantiate_one
from kvtwin.composition import compose_config
from kvtwin.settings import check_settings
from kvtwin.simulating import load_calibrated
from traces.reading import FORMATS

NO_DECODER = "the engine has no decoder with"


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def refused(kvtwin):
    return refusals(kvtwin)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["simm"], "no verb 'simm': did you mean sim?"),
        (["sim", "evicton=lru"], "evicton: no such key; did you mean eviction?"),
        (["sim", "eviction=lrru"], "eviction=lrru: no such eviction; did you mean lru or slru?"),
        (["sim", "pool.num_blokcs=3"], "pool.num_blokcs: no such key; did you mean pool.num_blocks"),
        (["sim", "seed=x"], "seed=x: expected a whole number of at least 0"),
        (["sim", "eviction=lru,fifo"], "eviction=lru,fifo: several values are a sweep; expected kvtwin sim -m"),
        (["sim", "nonsense"], "cannot read 'nonsense'; expected key=value"),
        (["sim", "--multrun"], "no option --multrun; did you mean --multirun"),
        (["sim", "~eviction"], "configuration: Key 'eviction' is not in struct"),
        (["size", "contxt=3"], "contxt: no such key; did you mean context?"),
        (["size", "routing=hash"], "routing: kvtwin size has no such setting (kvtwin size --help lists those"),
        (["size", "context=10000000"], "context_tokens=10000000: llama3_8b has 131072 positions"),
        (["size", "model=llama3_405b"], "llama3_405b does not fit on h100_80gb with tensor_parallel=1"),
        (["model", "fetch", "smollm2_135"], "model fetch smollm2_135: no real weights of it are known; did you mean"),
        (["parity"], "parity: the following arguments are required: LOG (kvtwin parity --help tells how)"),
        (["report"], "report: the following arguments are required: RUN_FOLDER"),
        (["doctor", "now"], "doctor: unrecognized arguments: now"),
    ],
)
def test_a_wrong_word_is_told_with_what_would_be_right(refused, words, line):
    assert refused(*words).startswith(line)


def told(verb: str, *words: str) -> str:
    """What the command would say of these words."""
    with pytest.raises(InputError) as caught:
        check_settings(compose_config(verb, words))
    return str(caught.value)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("trace=chat_sampl", "trace=chat_sampl: no such trace; did you mean chat_sample?"),
        ("model=llama3_9b", "model=llama3_9b: no such model; did you mean llama3_8b"),
        ("hardware=h200", "hardware=h200: no such hardware; did you mean h200_141gb?"),
        ("pool=3", "pool=3: no such pool; expected one of default"),
        ("+pool.num_blokcs=3", "pool.num_blokcs: no such key; did you mean pool.num_blocks"),
        ("+evicton=lru", "evicton: no such key; did you mean eviction?"),
        ("pool.num_blocks.x=3", "pool.num_blocks.x: no such key"),
        ("experiment=eviction_grid", "experiment: nothing to replace, it has no default; expected +experiment=..."),
        ("+experiment=grid", "experiment=grid: no such experiment; expected one of demo, eviction_grid"),
        ("eviction=own", "eviction._target_ is missing: expected a class of your own"),
        ("=3", "cannot read '=3'; expected key=value"),
        ("pool.num_blocks=[1", "cannot read 'pool.num_blocks=[1'; expected key=value"),
    ],
)
def test_so_is_every_other_kind_of_wrong_word(word, line):
    assert told("sim", word).startswith(line)


def test_the_shape_of_a_model_has_types_too():
    with pytest.raises(InputError, match=r"^model\.num_layers=x: expected a whole number$"):
        instantiate_one(compose_config("sim", ["model.num_layers=x"]).model, "model")
    with pytest.raises(InputError, match=r"^model\.layers: no such key; did you mean model\.num_layers"):
        instantiate_one(compose_config("sim", ["+model.layers=3"]).model, "model")


@pytest.fixture(scope="module")
def defaults() -> DictConfig:
    """What `kvtwin validate` runs with, and the simulator's keys beside it."""
    config = compose_config("sim", ())
    OmegaConf.set_struct(config, False)
    config.merge_with(compose_config("validate", ()))
    return config


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("pool.num_blocks", "abc", "a whole number from 1 to 2147483647, auto or unbounded"),
        ("pool.num_blocks", 0, "a whole number from 1 to 2147483647, auto or unbounded"),
        ("pool.num_blocks", 1.5, "a whole number from 1 to 2147483647, auto or unbounded"),
        ("pool.num_blocks", 2**31, "a whole number from 1 to 2147483647, auto or unbounded"),
        ("pool.num_blocks", True, "a whole number from 1 to 2147483647, auto or unbounded"),
        ("cluster.num_replicas", 10**9, "a whole number from 1 to 100000"),
        ("pool.host_blocks", -1, "a whole number from 0 to 2147483647"),
        ("pool.block_size_tokens", 0, "a whole number of at least 1"),
        ("pool.free_order", "newest", "one of unhashed_first, append_all"),
        ("pool.leaf_first", "yes", "true or false"),
        ("pool.prefix_index", "trie", "one of hash, radix"),
        ("pool.split_created", "never", "one of inherited, fresh"),
        ("seed", "x", "a whole number of at least 0"),
        ("decisions", "some", "one of full, digest, off"),
        ("fast_forward", "maybe", "true or false"),
        ("out", "", "a folder, or null"),
        ("name", "../elsewhere", "the name of a folder under runs/"),
        ("trace.length_scale", 0, "a positive number such as 2, 0.5 or 1/32"),
        ("trace.length_scale", "1/0", "a positive number such as 2, 0.5 or 1/32"),
        ("trace.rate_scale", -1, "a positive number such as 2, 0.5 or 1/32"),
        ("trace.limit", 0, "a whole number of at least 1, or null"),
        ("trace.format", "azur", f"one of auto, {', '.join(known.name for known in FORMATS)}"),
        ("trace.arrivals", "poisson", "one of recorded, sequential, all_at_once, closed_loop"),
        ("scheduler.max_num_seqs", 0, "a whole number of at least 1"),
        ("scheduler.chunked_prefill", 7, "true or false"),
        ("slo.ttft_s", 0, "a number above 0, or null"),
        ("cost.mfu", 0, "a ratio in (0, 1]"),
        ("cost.overhead_s", "fast", "seconds from 0 to 1e6"),
        ("engine.threads", 0, "a whole number of at least 1"),
        ("engine.temperature", -1, "a number from 0 on"),
        ("engine.clock", "sun", "one of wall, cpu"),
        ("engine.weights", "fake", "one of auto, real, random"),
        ("engine.pool_bytes", "1GB", "a whole number of at least 1 or auto"),
        ("engine.memory_fraction", 1.5, "a ratio in (0, 1]"),
        ("engine.top_p", 0, "a ratio in (0, 1]"),
        ("engine.top_k", -1, "a whole number of at least 0"),
        ("validate.repeats", 0, "a whole number of at least 1"),
    ],
)
def test_a_wrong_value_is_told_with_what_was_expected(defaults, key, value, expected):
    config = defaults.copy()
    OmegaConf.update(config, key, value)
    with pytest.raises(InputError) as caught:
        check_settings(config)
    shown = "true" if value is True else value
    assert str(caught.value) == f"{key}={shown}: expected {expected}"


@pytest.mark.parametrize("verb", ["sim", "engine", "validate", "calibrate", "size"])
def test_no_default_is_refused(verb):
    check_settings(compose_config(verb, ()))


def test_a_misspelt_key_in_an_experiment_file_is_told(refused, tmp_path):
    experiment = tmp_path / "mine" / "experiment" / "typo.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text("# @package _global_\nscheduler: {max_num_seq: 3}\n")
    line = refused("sim", "--config-dir", "mine", "+experiment=typo")
    assert line.startswith("scheduler.max_num_seq: no such key; did you mean scheduler.max_num_seqs")
    experiment.write_text("# @package _global_\neviction: sieve\n")
    line = refused("sim", "--config-dir", "mine", "+experiment=typo")
    assert line.startswith(
        "eviction=sieve: a value where a block of settings belongs; in a file an option is chosen by"
    )


def test_a_sweep_over_no_option_at_all_is_told_and_leaves_nothing(refused):
    line = refused("sim", "-m", "eviction=glob(x*)")
    assert line == "-m eviction=glob(x*): no job; expected a glob(...) that an option matches"


def test_policies_check_their_own_parameters(refused):
    assert refused("sim", "preemption.mode=foo") == "preemption.mode=foo: expected recompute or swap"
    assert refused("sim", "admission.watermark=2").startswith("admission.watermark=2: expected a share of the pool")
    assert refused("sim", "eviction.depth=2") == "eviction.depth: LRU has no such parameter; it takes none"


def test_each_form_of_the_prefix_index_has_its_own_policies(refused):
    assert refused("sim", "pool.prefix_index=radix") == (
        "eviction: LRU is no LeafRanking; expected a class derived from kvtwin.LeafRanking such as eviction=radix/lru,"
        " or pool.prefix_index=hash with this one"
    )
    assert refused("sim", "eviction=radix/lfu") == (
        "eviction: RadixLFU is no EvictionPolicy; expected a class derived from kvtwin.EvictionPolicy,"
        " or pool.prefix_index=radix with this one"
    )
    tree = ("sim", "pool.prefix_index=radix", "eviction=radix/lru")
    line = "preemption.mode=swap: pool.prefix_index=radix cannot swap; expected recompute"
    assert refused(*tree, "preemption=swap") == line
    line = "pool.prefix_index=radix: the tree holds one KV group of full attention, the model has 2 groups; expected"
    assert refused(*tree, "model=gemma2_9b", "cost=linear", "pool.num_blocks=400").startswith(line)


ROWS = [
    row(0),
    row(1),
    row(2, num_prompt_tokens="many"),
    row(3, num_output_tokens=0),
    '{"arrival_s": 4, "num_prompt_tokens": 4',
    row(5, num_outptu_tokens=3),
    row(6),
]


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (2, "own.jsonl, line 2, column num_prompt_tokens: 'many'; expected a whole number from 1 to"),
        (3, "own.jsonl, line 2, column num_output_tokens: 0; expected at least 1 output token"),
    ],
)
def test_a_malformed_row_is_told_by_line_and_column(refused, tmp_path, bad, line):
    write_trace(tmp_path / "own.jsonl", [ROWS[bad]])
    assert refused("sim", "trace=file", "trace.path=own.jsonl").startswith(line)


def test_malformed_rows_can_be_left_out_and_are_counted_by_reason(kvtwin, tmp_path):
    write_trace(tmp_path / "own.jsonl", ROWS)
    finished = kvtwin("sim", "trace=file", "trace.path=own.jsonl", "trace.on_error=skip")
    reasons = {"bad_value": 1, "malformed_row": 1, "unknown_key": 1, "zero_output": 1}
    assert finished.status == 0
    assert finished.summary["trace"]["num_dropped"] == reasons
    assert finished.summary["trace"]["num_requests"] == 3
    told = ", ".join(f"{num} {reason}" for reason, num in reasons.items())
    assert finished.errors == [f"note: 4 rows were left out of own: {told}"]


def test_a_trace_that_cannot_be_read_is_told(refused, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert refused("sim", "trace=empty.jsonl") == (
        "trace=empty.jsonl: no such trace; expected trace=file trace.path=empty.jsonl"
    )
    assert refused("sim", "trace.path=empty.jsonl") == (
        "trace.path=empty.jsonl: trace=chat_sample reads no file; expected trace=file beside it"
    )
    assert refused("sim", "trace=file") == "trace.path is missing: trace=file needs trace.path=FILE"
    assert refused("sim", "trace=file", "trace.path=none.jsonl").startswith("none.jsonl: cannot be read")
    assert refused("sim", "trace=file", "trace.path=empty.jsonl").startswith("empty.jsonl: is empty; expected a trace")


def test_a_pool_that_no_request_fits_is_refused_and_one_that_some_fit_is_noted(refused, kvtwin, tmp_path):
    write_trace(tmp_path / "own.jsonl", [row(0, 400), row(1, 40)])
    own = ("sim", "trace=file", "trace.path=own.jsonl")
    line = refused(*own, "pool.num_blocks=2")
    assert line.startswith("none of the 2 requests can run: the first needs 26 blocks, the pool has 2")
    line = refused(*own, "scheduler.max_model_len=10")
    assert line.startswith("none of the 2 requests can run: the first has 405 tokens, the longest allowed")
    some = kvtwin(*own, "pool.num_blocks=3")
    assert some.status == 0
    assert some.summary["metrics"]["outcomes"]["rejected"] == 1
    assert some.errors[0].startswith("note: 1 of 2 requests were rejected")


@pytest.mark.parametrize("plain_steps", ["true", "false"])
@pytest.mark.parametrize("long_time", ["cost.constant_s=1e6", "cost.prefill_token_s=1e6"])
def test_a_run_beyond_the_reach_of_its_clock_is_told(refused, long_time, plain_steps):
    """Steps that add up to too much, and a single one that is too long; in spans, and by the scheduler's own rule."""
    line = refused("sim", "cost=linear", long_time, "trace.limit=2", f"fast_forward={plain_steps}")
    assert line.startswith("virtual time went beyond 53 days, which 62 bits of picoseconds hold (")


def test_a_model_that_leaves_no_room_for_kv_is_refused(refused):
    line = refused("sim", "model=llama3_70b", "hardware=l4_24gb")
    assert line.startswith("pool.num_blocks=auto: llama3_70b leaves no memory for KV on l4_24gb")


def test_a_hardware_file_that_is_none_is_refused(refused, tmp_path):
    (tmp_path / "own.yaml").write_text("name: mine\n")
    (tmp_path / "odd.yaml").write_text("cost: {constant: 3}\n")
    (tmp_path / "less.yaml").write_text("cost: {constant_s: -1}\n")
    (tmp_path / "cut.yaml").write_text("cost: {constant_s: 1,\n")
    assert refused("sim", "cost=calibrated").startswith("cost.path is missing: expected a file that `kvtwin calibrate`")
    for name, line in {
        "no.yaml": "cost.path=no.yaml: No such file",
        "own.yaml": "cost.path=own.yaml: has no key `cost`",
        "odd.yaml": "cost.path=odd.yaml: cost.constant: no such key; did you mean constant_s?",
        "less.yaml": "cost.path=less.yaml: cost.constant_s=-1: expected at least 0",
        "cut.yaml": "cost.path=cut.yaml, line 2: not readable as YAML; expected a file that `kvtwin calibrate` wrote",
    }.items():
        with pytest.raises(InputError) as caught:
            load_calibrated(name)
        assert str(caught.value).startswith(line)


def test_a_run_never_overwrites_another(kvtwin, refused):
    kvtwin("sim", "trace.limit=3", "out=mine")
    line = refused("sim", "trace.limit=3", "out=mine")
    assert line == "out=mine: the folder is not empty; expected a new one, so that no run is overwritten"


def test_a_folder_that_cannot_be_made_is_told_before_the_run(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert refused("sim", "out=file").startswith("cannot make the run folder file: ")
    assert refused("sim", "out=file/below").startswith("cannot make the run folder file/below: ")
    (tmp_path / "runs").write_text("")
    assert refused("sim").startswith("cannot make the run folder runs/sim: ")


def test_a_damaged_decision_log_is_not_compared(kvtwin, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"config": {"policy": "fcfs"}, "requests": []}\n')
    finished = kvtwin("parity", "log.jsonl", "absent.jsonl")
    assert finished.status == 1
    first, second = finished.out.splitlines()
    assert first.startswith("log.jsonl: not compared (log.jsonl: not a complete log (KeyError: ")
    assert second.startswith("absent.jsonl: not compared (absent.jsonl: No such file or directory")


def test_a_report_of_what_is_no_run_is_refused(refused, tmp_path):
    (tmp_path / "half").mkdir()
    assert refused("report", "nowhere") == "no run folder at nowhere"
    assert refused("report", "half") == "half is not a finished run: it has no summary.json"


def test_a_missing_extra_is_told_with_what_to_install(refused, monkeypatch):
    monkeypatch.setattr("kvtwin.failures.find_spec", lambda package: None)
    assert refused("sim", "report=true") == "this needs plotly: pip install 'kvtwin[report]'"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "engine.weights=real: no weights of smollm2_135m at hand; fetch them: kvtwin model fetch smollm2_135m"),
        ("not weights", "cache/smollm2_135m/model.safetensors: damaged weights ("),
    ],
)
def test_missing_or_damaged_weights_are_told(refused, tmp_path, monkeypatch, content, line):
    pytest.importorskip("torch", reason="torch is in the extra `engine`")
    monkeypatch.setenv("KVTWIN_CACHE", "cache")
    (tmp_path / "cache").mkdir()
    if content is not None:
        (tmp_path / "cache" / "smollm2_135m").mkdir()
        (tmp_path / "cache" / "smollm2_135m" / "model.safetensors").write_text(content)
    assert refused("engine", "engine.weights=real", "trace.limit=2").startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["pool.num_blocks=unbounded"], "pool.num_blocks=unbounded: the engine's KV memory is finite"),
        (["pool.num_blocks=1000000000000"], "pool.num_blocks=1000000000000, pool.host_blocks=0: no room for"),
        (["engine.device=tpu"], "engine.device=tpu: torch has no such device here; expected auto"),
        (["engine.weights=real"], "engine.weights=real: no weights of tiny at hand; known for smollm2_135m"),
        (["model=llama3_405b"], "model=llama3_405b: its weights take 812 GB"),
        (["engine.pool_bytes=10"], "engine.pool_bytes=10: one block takes"),
        (["model=opt_13b"], f"model=opt_13b: {NO_DECODER} an MLP without gate (model.num_mlp_matrices=2), attention"),
        (
            [
                *("model=deepseek_v2_lite", "model.num_layers=1", "model.num_experts=0", "model.vocab_size=300"),
                *("model.hidden=16", "model.intermediate=16", "engine.cached_keys=unrotated"),
            ],
            "engine.cached_keys=unrotated: the model caches latents, not keys; expected rotated",
        ),
        (["model=gpt_oss_20b"], f"model=gpt_oss_20b: {NO_DECODER} attention sinks, output biases or whatever"),
    ],
)
def test_the_engine_refuses_what_it_cannot_run(words, line):
    pytest.importorskip("torch", reason="torch is in the extra `engine`")
    from kvtwin.engine_runs import load_engine_run

    config = compose_config("engine", ["model=tiny", "trace.limit=2", "trace.length_scale=1/16", *words])
    with pytest.raises(InputError) as caught:
        load_engine_run(config).run()
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--cfg"], "--cfg: expected --cfg job or hydra or all"),
        (["--cfg", "jobs", "seed=1"], "--cfg jobs: expected --cfg job or hydra or all"),
        (["--cfg=job", "-m"], "--cfg shows one configuration, a sweep has many; expected it without -m"),
        (["--resolve=yes"], "--resolve=yes: --resolve takes no value"),
        (
            ["eviction=lru,fifo", "seeds=2", "--cfg", "job"],
            "eviction=lru,fifo: several values are a sweep; expected one",
        ),
    ],
)
def test_an_option_is_refused_as_a_setting_is(refused, words, line):
    assert refused("sim", *words).startswith(line)
