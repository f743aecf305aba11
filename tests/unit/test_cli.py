"""The command line: quick where nothing is computed, exact sentences where something is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

import attn
from attn.cli import app
from attn.commands.bar import TrainingBar
from attn.commands.generate import pieces, speed
from attn.presets import NAMES, decoder
from attn.training_checkpoint import load_history

ROOT = Path(__file__).parents[2]
STORIES = ROOT / "examples" / "data" / "stories260K"
NAMED = ", ".join(NAMES)
TINY = [
    "--width=12",
    "--layers=1",
    "--heads=2",
    "--kv-heads=1",
    "--hidden=10",
    "--batch=3",
    "--context=7",
    "--eval-every=4",
]

PROGRAM = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
from attn.cli import app
try:
    app({arguments!r}, prog_name="attn")
finally:
    print(sorted({{"torch", "jax", "flax", "optax", "numpy", "pydantic", "rich", "matplotlib"}} & set(sys.modules)))
"""


def run(*arguments: object) -> tuple[int, str, str]:
    """The exit status, what is printed, and what is printed as an error."""
    result = CliRunner().invoke(app, [str(word) for word in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def refusal(*arguments: object) -> str:
    """The sentence with which a command refuses; nothing else is printed."""
    code, out, sentence = run(*arguments)
    assert (code, out) == (2, "")
    assert sentence.endswith(".\n")
    assert sentence.count("\n") == 1
    return sentence[:-1]


def fresh(*arguments: str, absent: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    program = PROGRAM.format(absent=absent, arguments=list(arguments))
    return subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True)


def lines(out: str) -> list[str]:
    """The lines, with single spaces between their words."""
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.fixture
def text(tmp_path) -> Path:
    """A text of seven different characters."""
    path = tmp_path / "text.txt"
    path.write_text("abc defa\n" * 40, encoding="utf-8")
    return path


def trained(text: Path, out: Path, *options: object, backend: str = "torch") -> tuple[int, str, str]:
    return run("train", "--out", out, "--data", text, "--backend", backend, *options)


def test_help_imports_nothing_heavy():
    # The processor's time: the wall's depends on what else the machine does.
    began = os.times()
    help_ = fresh("--help")
    ended = os.times()
    seconds = ended.children_user + ended.children_system - began.children_user - began.children_system
    print(f"attn --help took {seconds:.2f} s")
    assert help_.returncode == 0, help_.stderr
    assert help_.stdout.splitlines()[-1] == "[]"
    for command in ("list", "show", "parity", "convert", "train", "generate", "demo"):
        assert f"\n  {command} " in help_.stdout
    assert "tables" not in help_.stdout
    assert seconds < 2


@pytest.mark.parametrize("arguments", [("list",), ("show", "latent"), ("generate", "--help"), ("train", "--help")])
def test_no_framework_is_imported_where_nothing_is_computed(arguments):
    shown = fresh(*arguments)
    assert shown.returncode == 0, shown.stderr
    assert not {"torch", "jax", "flax", "optax", "matplotlib"} & set(eval(shown.stdout.splitlines()[-1]))


def test_list_names_everything():
    code, out, _ = run("list")
    assert code == 0
    for name, page in (attn.VARIANTS | attn.MODELS).items():
        assert any(line.split()[:2] == [name, page.__name__] for line in out.splitlines())
    assert "y = concat_h( softmax(q_h k_{h // G}^T / sqrt(D)) v_{h // G} ) Wo" in out
    assert "embed[tokens]" in out  # brackets are text, no markup


def test_show_a_variant():
    code, out, _ = run("show", "grouped_query")
    assert code == 0
    assert "Query head h reads key/value head h // G" in out
    assert "M=64 (model width), H=8 (query heads), K=2 (key/value heads), " in out
    assert "k.kernel M K D 64 x 2 x 8 1 1,024" in lines(out)
    assert "\n10,240 parameters\n" in out
    assert "k [K D], v [K E] 1 32 128 64" in lines(out)


@pytest.mark.parametrize("path", [STORIES, STORIES / "stories260K.bin", STORIES / "config.json"])
def test_show_a_foreign_model(path):
    code, out, _ = run("show", path)
    assert code == 0
    assert "V=512 (vocabulary), M=64 (model width), L=5 (layers)" in out
    assert "\n260,032 parameters\n" in out
    assert "k [K D], v [K E] 5 64 256 128" in lines(out)


def test_show_a_config_file_and_a_folder(tmp_path):
    cfg = attn.MultiHeadLatentAttentionConfig(input_dim=10, heads=2, kv_lora_rank=7)
    (tmp_path / "mine.json").write_text(cfg.to_json())
    attn.save(tmp_path / "folder", cfg, attn.init_weights(cfg, seed=0))
    shown = [run("show", tmp_path / name)[1] for name in ("mine.json", "folder")]
    assert shown[0] == shown[1]
    assert "latent [C] 1 7 28 14" in lines(shown[0])


def test_show_compares_the_variants_at_the_sizes_of_one():
    code, out, _ = run("show", STORIES, "--compare", "--context", 512)
    assert code == 0
    assert "GQA, 4 key/value heads 12,288 64 256 128 155,648" in lines(out)
    assert "MLA, latent of 32 + 4 16,640 36 144 72 4,383,232 590,336" in lines(out)
    assert "a new one looks back at 512." in out
    assert refusal("show", "self", "--compare") == "CONFIG must have several heads to be compared; got 'self'."


def test_show_draws_a_mask(tmp_path):
    chunks, window = attn.Chunked(width=3), attn.SlidingWindow(width=2)
    cfg = decoder(11, width=12, layers=3, heads=2, kv_heads=1, hidden=10)
    attention = cfg.attention.replace(mask=chunks)
    path = tmp_path / "mine.json"
    path.write_text(cfg.replace(attention=(attention, attention.replace(mask=window), attention)).to_json())
    code, out, _ = run("show", path, "--mask", "--length", 4)
    assert code == 0
    assert out.splitlines() == [
        '{"kind":"chunked","width":3} in 2 layers',
        "■ · · ·",
        "■ ■ · ·",
        "■ ■ ■ ·",
        "· · · ■",
        '{"kind":"sliding_window","width":2,"symmetric":false} in 1 layer',
        "■ · · ·",
        "■ ■ · ·",
        "· ■ ■ ·",
        "· · ■ ■",
    ]
    assert refusal("show", path, "--mask", "--length", 0) == "--length must be at least 1; got 0."


def test_show_draws_a_mask_into_a_file(tmp_path):
    assert run("show", "causal", "--png", tmp_path / "causal.png", "--length", 8)[0] == 0
    image = imread(tmp_path / "causal.png")
    corner, other = (image[image.shape[0] * at // 10, image.shape[1] * (10 - at) // 10, :3] for at in (8, 2))
    assert corner.argmax() == 2  # below the diagonal it is blue
    assert np.ptp(other) < 0.01  # above it, grey


def test_a_word_that_is_nothing_is_refused():
    sentence = refusal("show", "multihead")
    assert sentence == f"CONFIG must be an existing file or folder or one of {NAMED}; got 'multihead'."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "{path} is damaged: its JSON cannot be parsed; received b'{{'."),
        ("[1]", "{path} must hold a JSON object; got [1]."),
        ("{}", "{path} must have a variant, or a model_type among {known}; got None."),
        ('{"variant": "self", "input_dim": -3}', "self.input_dim: input should be greater than 0; got -3."),
        (
            '{"variant": "multi_head", "input_dim": 64, "heads": 7}',
            "heads must divide dim_k; got heads=7 and dim_k=64.",
        ),
        (
            '{"variant": "self", "input_dim": "8", "colour": 1}',
            "self.input_dim: input should be a valid integer; got '8'; "
            "self.colour: extra inputs are not permitted; got 1.",
        ),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path, content, expected):
    path = tmp_path / "some.json"
    path.write_text(content)
    assert refusal("show", path) == expected.format(path=path, known=", ".join(attn.hub.PAGES))


def test_parity_above_its_bound_ends_with_one(monkeypatch):
    monkeypatch.setattr("attn.parity.checking.bound", lambda *_, **__: 1e-300)
    code, out, _ = run("parity", "--variant", "causal", "--dtype", "float64")
    assert code == 1
    assert sum(line.split()[1:2] == ["causal"] for line in out.splitlines()) == 3


def test_parity_within_its_bound_ends_with_zero_and_shows_every_quantity(tmp_path):
    (tmp_path / "mine.json").write_text(attn.CausalAttentionConfig(input_dim=5, dim_v=3).to_json())
    code, out, _ = run("parity", tmp_path / "mine.json", "--dtype", "float64")
    assert code == 0
    for quantity in ("y", "gradient of x", "gradient of q.kernel", "gradient of v.kernel"):
        assert f" {quantity} " in out


def test_parity_refuses_what_it_does_not_know():
    assert refusal("parity", "--variant", "both").endswith("; got 'both'.")
    assert (
        refusal("parity", "latent", "--variant", "self") == "--variant is not read where a CONFIG is given; got 'self'."
    )
    assert refusal("parity", "self", "--dtype", "int8") == (
        "dtype must be one of float64, float32, float16, bfloat16; got 'int8'."
    )


def test_convert_there_and_back_is_exact(tmp_path):
    ours, theirs, again = (tmp_path / name for name in ("ours", "theirs", "again"))
    code, out, _ = run("convert", STORIES / "stories260K.bin", ours)
    assert (code, out) == (0, f"260,032 parameters written to {ours}, in the form of attn\n")
    assert run("convert", ours, theirs, "--to", "huggingface")[0] == 0
    assert (theirs / "model.safetensors").read_bytes() == (STORIES / "model.safetensors").read_bytes()
    assert run("convert", STORIES, again)[0] == 0
    for folder in (ours, theirs, again):
        assert (folder / "tok512.bin").read_bytes() == (STORIES / "tok512.bin").read_bytes()


def test_convert_refuses_before_it_writes(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    sentence = refusal("convert", STORIES, tmp_path / "full")
    assert sentence == f"DST must be a new or an empty folder; got '{tmp_path / 'full'}'."
    assert (
        refusal("convert", STORIES, tmp_path / "new", "--to", "gguf")
        == "--to must be one of attn, huggingface; got 'gguf'."
    )
    assert refusal("convert", STORIES / "config.json", tmp_path / "new").startswith(
        "CHECKPOINT must hold weights; got "
    )
    assert not (tmp_path / "new").exists()


def test_generate_tells_the_story():
    code, out, error = run("generate", STORIES, "--steps", 20)
    assert (code, out) == (0, "Once upon a time, there was a little girl named Lily. She loved to play\n")
    assert "20 tokens in " in error
    assert " s in torch: " in error
    assert " tokens/s after two" in error


def test_generate_is_the_same_from_either_form_and_in_either_twin():
    words = ("--steps", 12, "--prompt", "Tim had a", "--temperature", 0.9, "--top-k", 40, "--top-p", 0.95, "--seed", 3)
    told = {run("generate", path, *words)[1] for path in (STORIES, STORIES / "stories260K.bin")}
    told.add(run("generate", STORIES, *words, "--backend", "jax")[1])
    assert len(told) == 1
    assert told.pop().startswith("Tim had a ")


def test_a_stream_of_text_waits_for_whole_characters():
    class Bytes:
        def decode(self, tokens):
            return bytes(tokens).decode(errors="replace")

    assert list(pieces(Bytes(), b"a", "bé!".encode())) == ["ab", "é", "!", ""]
    assert "".join(pieces(Bytes(), b"a", "é".encode()[:1])) == "a\N{REPLACEMENT CHARACTER}"


def test_the_rate_of_a_stream_leaves_out_what_may_have_waited_for_a_compiler():
    assert speed([10, 13, 15, 15.5, 16], "jax") == "4 tokens in 6.00 s in jax: 2 tokens/s after two"
    assert speed([10, 13], "torch") == "1 token in 3.00 s in torch"


def test_generate_ends_before_the_stop_token():
    dot = 426
    code, out, _ = run("generate", STORIES, "--steps", 40, "--stop", dot)
    assert (code, out) == (0, "Once upon a time, there was a little girl named Lily\n")


def test_generate_speaks_numbers_where_there_is_no_tokenizer(tmp_path):
    cfg = decoder(11, width=12, layers=1, heads=2, kv_heads=1, hidden=10)
    attn.save(tmp_path, cfg, attn.init_weights(cfg, seed=0))
    code, out, _ = run("generate", tmp_path, "--prompt", "3 10", "--steps", 4)
    assert code == 0
    assert out.startswith("3 10 ")
    assert len(out.split()) == 6
    assert refusal("generate", tmp_path, "--prompt", "3 x") == (
        "--prompt must be token numbers where no tokenizer lies beside the model; got 'x'."
    )
    assert refusal("generate", tmp_path) == "--prompt must hold at least one token; got ''."


def test_generate_refuses_what_it_cannot_run(tmp_path):
    assert refusal("generate", "nothing") == "CHECKPOINT must be an existing file or folder; got 'nothing'."
    assert refusal("generate", STORIES, "--backend", "numpy") == "backend must be one of jax, torch; got 'numpy'."
    assert refusal("generate", STORIES, "--steps", 0) == "steps must be at least 1; got 0."
    assert refusal("generate", STORIES, "--top-p", 2) == "top_p: input should be less than or equal to 1; got 2.0."
    cfg = attn.SelfAttentionConfig(input_dim=3)
    attn.save(tmp_path, cfg, attn.init_weights(cfg, seed=0))
    assert refusal("generate", tmp_path) == "CHECKPOINT must hold a decoder; got 'self'."


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_missing_framework_is_one_sentence(backend):
    absent = ("torch", "jax", "jaxlib", "flax", "optax")
    tried = fresh("generate", str(STORIES), "--backend", backend, absent=absent)
    assert tried.returncode == 2
    assert f"pip install 'attn[{backend}]'" in tried.stderr
    assert tried.stderr.count("\n") == 1


def test_train_writes_a_checkpoint_that_generates(text, tmp_path):
    code, out, _ = trained(text, tmp_path / "out", "--steps", 6, *TINY)
    assert code == 0
    assert f"; written to {tmp_path / 'out'}" in out
    history = load_history(tmp_path / "out")
    assert history.step == 6
    assert history.tokenizer.characters == "\n abcdef"
    assert [step for step, _ in history.validation] == [4, 6]
    code, out, _ = run("generate", tmp_path / "out", "--prompt", "abc", "--steps", 5)
    assert code == 0
    assert out.startswith("abc")
    assert set(out) <= set("\n abcdef")
    assert refusal("generate", tmp_path / "out", "--prompt", "z").endswith("; got 'z'.")
    run("convert", tmp_path / "out", tmp_path / "copy")
    assert run("generate", tmp_path / "copy", "--prompt", "abc", "--steps", 5)[1] == out


def test_ctrl_c_leaves_a_checkpoint_that_the_other_twin_resumes(text, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert trained(text, whole, "--steps", 6, *TINY)[0] == 0

    def interrupted(self, progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainingBar, "report", interrupted)
        code, out, _ = trained(text, cut, "--steps", 6, *TINY)
    assert code == 130
    assert out == f"training stopped after step 3 of 6; attn train --resume --out {cut} goes on with it\n"
    assert load_history(cut).step == 3
    assert trained(text, cut, "--resume", backend="jax")[0] == 0
    assert load_history(cut).losses == pytest.approx(load_history(whole).losses, abs=1e-5)


def test_train_refuses_before_it_trains(text, tmp_path):
    out = tmp_path / "out"
    words = ("train", "--out", out, "--data", text, "--backend", "torch")
    assert refusal(*words, "--resume") == f"--resume needs a training in --out; got '{out}'."
    assert refusal(*words, "--heads", 5) == "heads must divide dim_k; got heads=5 and dim_k=96."
    assert refusal(*words, "--steps", 0) == "steps: input should be greater than 0; got 0."
    assert refusal("train", "--data", tmp_path / "none") == f"{tmp_path / 'none'} does not exist."
    config = tmp_path / "config.json"
    config.write_text(decoder(3).to_json())
    assert refusal(*words, "--config", config) == (
        "--config must have vocab_size of at least 8, the text's characters; got 3."
    )
    assert refusal(*words, "--config", config, "--width", 8) == "--width is not read where --config is given; got 8."
    config.write_text(attn.SelfAttentionConfig(input_dim=3).to_json())
    assert refusal(*words, "--config", config) == "--config must hold a decoder; got 'self'."
    assert not out.exists()


def test_train_neither_overwrites_nor_ignores(text, tmp_path):
    out = tmp_path / "out"
    trained(text, out, "--steps", 1, *TINY)
    words = ("train", "--out", out, "--data", text, "--backend", "torch")
    assert refusal(*words) == f"--out must not hold a training already (--resume goes on with it); got '{out}'."
    assert refusal(*words, "--resume", "--kv-heads", 1) == (
        "--kv-heads is not read with --resume, which goes on as it began; got '1'."
    )
    assert load_history(out).step == 1


def test_demo_refuses_a_folder_without_its_data(tmp_path):
    sentence = refusal("demo", "--data", tmp_path, "--out", tmp_path / "out")
    assert sentence == f"--data must name a folder with stories260K, as a clone's examples/data; got '{tmp_path}'."
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_demo_ends_as_its_checks_do(monkeypatch, tmp_path, holds, code):
    monkeypatch.setattr("attn.demo.running.demonstrate", lambda *_: holds)
    assert run("demo", "--out", tmp_path)[0] == code


def test_tables_writes_the_readme_anew(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table: variants -->\nold\n<!-- end -->\n")
    code, out, _ = run("tables", readme)
    assert code == 0
    assert "`grouped_query`" in out
    assert "old" in readme.read_text()
    assert run("tables", readme, "--write")[0] == 0
    assert readme.read_text() == out


def test_an_error_of_ours_has_its_traceback_when_asked_for():
    with pytest.raises(ValueError, match="CONFIG must be"):
        run("--traceback", "show", "multihead")


@pytest.mark.full
@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_stops_a_training_between_steps(text, tmp_path):
    out = tmp_path / "out"
    words = ["train", "--out", str(out), "--data", str(text), "--backend", "torch", "--steps", "100000", *TINY]
    program = PROGRAM.format(absent=(), arguments=words)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    arguments = [sys.executable, "-c", program, *words]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment) as child:
        # The folder is written before the first step, and after each hundredth.
        while not (written := out / "train.json").exists() or json.loads(written.read_text())["step"] < 100:
            assert child.poll() is None
        child.send_signal(2)
        assert child.wait(300) == 130
    step = json.loads((out / "train.json").read_text())["step"]
    assert 100 <= step < 100000
    assert len(load_history(out).losses) == step
