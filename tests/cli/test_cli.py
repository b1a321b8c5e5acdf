"""The command line as a user meets it: what it prints, writes and refuses."""

import html
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from phenogroups import DeepUCSL, cli
from phenogroups.cli.progress import counting_bar
from phenogroups.data.examples.drawn_table import drawn_table

COMMAND = [sys.executable, "-m", "phenogroups.cli"]
QUICK = ["--set", "epochs=2", "steps=2", "restarts=1"]


@pytest.fixture
def features_csv(features, tmp_path):
    """Too few patients for subgroups to be looked for again in halves, which takes the most time of a run."""
    some = features[:90]
    rows = pd.DataFrame(some.inputs, columns=[f"x{j}" for j in range(6)]).assign(diagnosis=some.diagnosis)
    rows["kind"] = some.truth
    rows.to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path / "subjects.csv"


@pytest.fixture
def images_csv(tmp_path):
    """Twelve small pictures."""
    rng = np.random.default_rng(0)
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    names = [f"sub-{i:02d}" for i in range(12)]
    rows = pd.DataFrame({"id": names, "scan": [f"{i}.png" for i in range(12)], "dx": ["HC", "SZ"] * 6})
    rows.to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path / "subjects.csv"


IMAGES = ["--image", "scan", "--diagnosis", "dx", "--subject", "id", "--control", "HC", "--patient", "SZ"]


def plain(text: str) -> str:
    return " ".join(text.split())


def test_help_answers_in_a_second():
    """Of a processor: on a machine that is busy, the clock runs on while the command waits for its turn."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run([*COMMAND, "--help"], check=True, capture_output=True)
    assert 0 < spent() - before < 1


def test_help_imports_nothing_heavy():
    code = "import sys, phenogroups.cli; sys.exit(bool({'torch', 'pandas', 'sklearn', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("command", ["demo", "discover", "compare", "predict", "check"])
def test_every_option_is_explained(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--help"])
    assert exit_.value.code == 0
    options = [line for line in capsys.readouterr().out.splitlines() if line.strip("│ ").startswith("--")]
    assert options
    assert not [line for line in options if "None" in line]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which the demo was run by a process of its own, and what it said."""
    home = tmp_path_factory.mktemp("demo")
    command = [*COMMAND, "demo", "--subjects", "40", "--epochs", "1", "--out", "here"]
    return home / "here", subprocess.run(command, cwd=home, check=True, capture_output=True, text=True, env=os.environ)


def test_demo(demo):
    folder, said = demo
    for words in ("Subgroup", "deep_ucsl", "kmeans on pixels", "held-out patients", "here/report.html"):
        assert words in plain(said.stdout)
    assert re.search(r"epoch (\d+)/\1 .* classification \d\.\d+ +clustering \d\.\d+ +0:00:00 left", said.stderr)
    assert len(pd.read_csv(folder / "subgroups.csv")) == 40


def test_demo_as_a_command(demo):
    folder, said = demo
    assert "here/report.html" in said.stdout
    assert "Warning" not in said.stderr
    assert (folder / "report.html").stat().st_size > 10_000


def test_discover_then_predict_features(features_csv, tmp_path, capsys):
    run, new = str(tmp_path / "run"), tmp_path / "new.csv"
    assert cli.main(["discover", str(features_csv), "--truth", "kind", "--out", run, *QUICK]) == 0
    printed = plain(capsys.readouterr().out)
    assert "45 patients and 45 controls, 6 features: x0, x1, x2, x3, x4, x5" in printed
    headline = json.loads((tmp_path / "run" / "verdict.json").read_text())["headline"]
    assert (
        printed.index(headline) < printed.index("subgroups were looked for") < printed.index("Scores on the held-out")
    )
    pd.read_csv(features_csv).drop(columns=["diagnosis", "kind"])[:3].to_csv(new, index=False)
    assert cli.main(["predict", run, str(new)]) == 0
    assert "3 subjects assigned" in capsys.readouterr().out
    rows = pd.read_csv(tmp_path / "new.subgroups.csv")
    columns = ["subject", "subgroup", "p_A", "p_B", "confidence", "undecided", "p_patient"]
    columns += ["distance_A", "distance_B", "strangeness", "remark", "problem"]
    assert list(rows.columns) == columns
    assert list(rows["subject"]) == ["row1", "row2", "row3"]


def test_discover_then_predict_images(images_csv, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert cli.main(["discover", str(images_csv), *IMAGES, "--size", "10", "10", "--out", run, *QUICK]) == 0
    assert "6 patients and 6 controls, images of shape (1, 10, 10)" in capsys.readouterr().out
    assert cli.main(["predict", run, str(images_csv), "--out", str(tmp_path / "out.csv")]) == 0
    assert list(pd.read_csv(tmp_path / "out.csv")["subject"]) == [f"sub-{i:02d}" for i in range(12)]


def test_a_method_without_epochs_has_no_bar(features_csv, tmp_path, capsys):
    assert cli.main(["discover", str(features_csv), "--method", "kmeans", "--out", str(tmp_path / "run")]) == 0
    assert "epoch" not in capsys.readouterr().err


def test_a_finished_run_is_not_replaced_without_a_word(features_csv, tmp_path, capsys):
    command = ["discover", str(features_csv), "--method", "kmeans", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    before = (tmp_path / "run" / "recipe.json").read_bytes()
    capsys.readouterr()
    assert cli.main([*command, "--seed", "1"]) == 2
    printed = capsys.readouterr()
    said = plain(printed.err)
    assert "run, which holds a finished run or a saved model. Give another folder (--out), or replace it (--ov" in said
    assert printed.out == ""  # said before anything is read
    assert (tmp_path / "run" / "recipe.json").read_bytes() == before
    assert cli.main([*command, "--seed", "1", "--overwrite"]) == 0
    assert (tmp_path / "run" / "recipe.json").read_bytes() != before


def test_several_words_of_patients_are_compared_with_the_subgroups(features, tmp_path, capsys):
    words = np.where(features.is_patient, np.where(features.truth == 1, "glaucoma", "cataract"), "none")
    rows = pd.DataFrame(features.inputs, columns=[f"x{j}" for j in range(6)]).assign(dx=words)
    rows.to_csv(tmp_path / "eyes.csv", index=False)
    command = ["discover", str(tmp_path / "eyes.csv"), "--diagnosis", "dx", "--control", "none"]
    command += ["--patient", "cataract", "glaucoma", "--method", "kmeans", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert "Subgroups will be compared with the patients' words (cataract, glaucoma)." in printed.err
    assert "by subgroup found and by what is known" in plain(printed.out)
    table = re.findall(r"^ *([AB]) +(\d+) +(\d+) *$", printed.out, flags=re.MULTILINE)
    assert [letter for letter, *_ in table] == ["A", "B"]
    assert sum(int(count) for _, *counts in table for count in counts) == 12
    assert "glaucoma" in (tmp_path / "run" / "report.html").read_text()


def test_redirected_output_has_a_line_for_each_epoch_with_one_count(features_csv, tmp_path, capsys):
    command = ["discover", str(features_csv), "--truth", "kind", "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--set", "epochs=3", "warmup=1", "steps=5", "restarts=2", "clusterer=kmeans"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "phenogroups discover: starting"
    shown = [line for line in lines if "epoch" in line]
    assert all(re.search(r"epoch \d/3  .*classification \d\.\d{3}  .*\d:\d\d:\d\d left$", line) for line in shown)
    epochs = [line.partition("  ")[0] for line in shown]
    assert epochs[:2] == ["start 1 of 2, epoch 1/3", "start 2 of 2, epoch 1/3"]
    assert epochs[-1] == "epoch 3/3"
    assert len(epochs) == len(set(epochs))


@pytest.mark.parametrize(
    ("restarts", "warmup", "done", "words"),
    [
        (1, 2, 0.5, "epoch 1/6"), (1, 2, 6, "epoch 6/6"), (3, 2, 0.2, "start 1 of 3, epoch 1/6"),
        (3, 2, 2, "start 1 of 3, epoch 2/6"), (3, 2, 2.2, "start 2 of 3, epoch 1/6"),
        (3, 2, 6, "start 3 of 3, epoch 2/6"), (3, 2, 6.1, "epoch 3/6"), (3, 2, 10, "epoch 6/6"),
        (2, 0, 1, "epoch 1/6"),
    ],
)  # fmt: skip
def test_passes_over_several_starts_are_counted_as_the_epochs_of_one(restarts, warmup, done, words):
    assert DeepUCSL(epochs=6, warmup=warmup, restarts=restarts).epoch_in_words(done) == words


def test_reading_is_counted_where_output_is_redirected(capsys):
    with counting_bar("reading") as progress:
        for done in range(1, 251):
            progress(done, 250)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["reading 100 of 250", "reading 200 of 250"]
    assert all(line.endswith("left") for line in lines)


def test_a_report_of_nothing_is_refused_before_anything_heavy_is_imported(tmp_path):
    code = "import sys; from phenogroups import cli; assert cli.main(['report', 'nonexist']) == 2; "
    code += "sys.exit(bool({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "phenogroups report: starting" in done.stderr
    assert "Expected a run folder, as discover writes it. Received: nonexist, which does not exist." in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("option", [["--set", "device=cuda"], ["--device", "cuda"]])
def test_a_device_that_is_not_there_is_said_in_one_sentence(features_csv, tmp_path, capsys, option):
    assert cli.main(["discover", str(features_csv), "--out", str(tmp_path / "run"), *option]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "Expected a device that this machine has: auto, cpu" in lines[1]
    assert "Received: 'cuda'. Leave the device out" in lines[1]


def test_common_settings_are_plain_options_and_the_run_has_a_log(features_csv, tmp_path, capsys):
    plainly = ["--epochs", "2", "--device", "cpu", "--threads", "1", "--seed", "3", "--verbose"]
    run = tmp_path / "run"
    command = ["discover", str(features_csv), "--out", str(run), *plainly, "--set", "steps=2", "clusterer=kmeans"]
    assert cli.main(command) == 0
    settings = json.loads((run / "recipe.json").read_text())["settings"]
    assert (settings["epochs"], settings["device"], settings["seed"]) == (2, "cpu", 3)
    assert "Method deep_ucsl, settings {" in capsys.readouterr().err
    log = (run / "log.txt").read_text()
    for words in ("Method deep_ucsl, settings {", "epoch 2/2", "45 patients and 45 controls", "held-out", "Written:"):
        assert words in log
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", log)
    assert cli.main([*command[:4], "--threads", "0", "--overwrite"]) == 2
    assert "Expected --threads of at least 1. Received: 0." in capsys.readouterr().err


@pytest.mark.parametrize("error", [FloatingPointError("Expected finite losses."), RuntimeError("a fault")])
def test_a_run_that_failed_leaves_its_log_until_another_ends(features_csv, tmp_path, capsys, monkeypatch, error):
    command = ["discover", str(features_csv), "--truth", "kind", "--out", str(tmp_path / "new" / "run"), *QUICK]
    log = tmp_path / "new" / "run.log.txt"
    with monkeypatch.context() as patch:
        patch.setattr("phenogroups.methods.deep.expectation_maximisation", Mock(side_effect=error))
        with nullcontext() if isinstance(error, FloatingPointError) else pytest.raises(RuntimeError, match="a fault"):
            assert cli.main(command) == 2
    assert f"What it said and did until then is in {log}." in plain(capsys.readouterr().err)
    for words in ("Method deep_ucsl, settings {", "45 patients and 45 controls", str(error), "Traceback"):
        assert words in log.read_text()
    assert cli.main(command) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run"]


def test_a_mistake_that_is_said_at_once_leaves_no_file(features_csv, tmp_path):
    before = {*tmp_path.iterdir()}
    for wrong in (["--threads", "0"], ["--set", "epoch=3"], ["--subgroups", "46"]):
        assert cli.main(["discover", str(features_csv), "--out", str(tmp_path / "run"), *wrong]) == 2
    assert {*tmp_path.iterdir()} == before


def test_an_early_end_is_said_with_its_own_epoch(tmp_path, capsys):
    rng = np.random.default_rng(1)
    ill, kind = np.arange(300) % 2, rng.integers(0, 2, 300)
    rows = pd.DataFrame(rng.normal(size=(300, 4)) + np.c_[4 * ill, 9 * (ill & kind), 0 * ill, 0 * ill])
    rows.add_prefix("x").assign(diagnosis=ill).to_csv(tmp_path / "s.csv", index=False)
    command = ["discover", str(tmp_path / "s.csv"), "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--set", "epochs=30", "steps=7", "clusterer=kmeans", "restarts=1"]) == 0
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("start", "epoch"))]
    epochs = len(pd.read_csv(tmp_path / "run" / "history.csv"))
    assert epochs < 30
    assert [line.partition("  ")[0] for line in shown[:-1]] == [f"epoch {i}/30" for i in range(1, epochs)]
    assert shown[-1].startswith(f"epoch {epochs}/30, the last: hardly any patient changes subgroup  classification ")
    assert shown[-1].endswith("  0:00:00 left")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--subgroups", "3"], 0, "6 patients for 3 subgroups: with fewer than 10 for each, subgroups are hardly ever"),
        (["--subgroups", "7"], 1, "Expected at least as many patients as subgroups"),
        (["--subgroups", "2:7"], 1, "Expected at least as many patients as subgroups"),
        (["--held-out", "0"], 1, "enough patients to train on and to hold out a share of 0.0"),
        (["--subgroups", "many"], 2, "Expected --subgroups as a number from 2 on"),
    ],
)
def test_check_judges_by_what_discover_would_be_asked_for(features, tmp_path, capsys, options, code, words):
    some = np.r_[np.flatnonzero(features.is_patient)[:6], np.flatnonzero(~features.is_patient)[:9]]
    rows = pd.DataFrame(features.inputs[some]).add_prefix("x").assign(diagnosis=features.diagnosis[some])
    rows.to_csv(tmp_path / "s.csv", index=False)
    assert cli.main(["check", str(tmp_path / "s.csv"), *options]) == code
    printed = capsys.readouterr()
    assert words in plain(printed.out + printed.err)
    if code:  # the same is said by discover
        assert cli.main(["discover", str(tmp_path / "s.csv"), *options, "--out", str(tmp_path / "run")]) == 2
        assert words in plain(capsys.readouterr().err)


def test_losses_are_written_while_a_run_goes_on(features_csv, tmp_path, capsys):
    losses, run = tmp_path / "losses.csv", ["discover", str(features_csv), "--log-losses", str(tmp_path / "losses.csv")]
    quick = ["--set", "epochs=3", "warmup=1", "steps=5", "restarts=2", "clusterer=kmeans", "stop_below=0"]
    assert cli.main([*run, "--out", str(tmp_path / "run"), *quick]) == 0
    rows, history = pd.read_csv(losses), pd.read_csv(tmp_path / "run" / "history.csv")
    assert list(rows) == ["time", "training", "classification", "clustering"]
    assert list(rows["training"]) == ["start 1 of 2, epoch 1/3", "start 2 of 2, epoch 1/3", "epoch 2/3", "epoch 3/3"]
    np.testing.assert_allclose(rows["classification"][-2:], history["classification"][-2:], rtol=1e-5)
    before = losses.read_bytes()
    capsys.readouterr()
    assert cli.main([*run, "--out", str(tmp_path / "other")]) == 2  # it could be any file
    assert "Expected a new file for the losses. Received" in capsys.readouterr().err
    assert losses.read_bytes() == before
    run[-1] = str(tmp_path / "none.csv")
    assert cli.main([*run, "--method", "kmeans", "--out", str(tmp_path / "other")]) == 0
    assert "The method kmeans has no epochs" in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()


def test_the_shell_completes_commands_and_options(tmp_path):
    script = subprocess.run([*COMMAND, "--tyro-print-completion", "bash"], capture_output=True, text=True, check=True)
    (tmp_path / "completion").write_text(script.stdout)
    typed = """
        source completion
        for words in "phenogroups disc" "phenogroups discover --overw"; do
            COMP_WORDS=($words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _tyro_phenogroups; echo $COMPREPLY
        done
    """
    told = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["discover", "--overwrite"]


def test_a_setting_that_is_given_as_an_option_says_set(features_csv, capsys):
    with pytest.raises(SystemExit):
        cli.main(["discover", str(features_csv), "--restarts", "2"])
    assert "restarts is a setting of a method. Give it as --set restarts=VALUE." in capsys.readouterr().err


def test_verbose_shows_where_an_error_came_from(tmp_path, capsys):
    assert cli.main(["discover", str(tmp_path / "none.csv"), "--verbose"]) == 2
    assert "Traceback" in capsys.readouterr().err


def edit(path, **columns):
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    rows.assign(**columns).to_csv(path, index=False)


def colour(path):
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(path.parent / "3.png")


def larger(path):
    Image.fromarray(np.zeros((9, 8), dtype=np.uint8)).save(path.parent / "3.png")


def truncated(path):
    (path.parent / "3.png").write_bytes((path.parent / "3.png").read_bytes()[:50])


def nan_image(path):
    np.save(path.parent / "3.npy", np.full((8, 8), np.nan))
    edit(path, scan=["3.npy" if i == 3 else f"{i}.png" for i in range(12)])


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (colour, [], ["(1, 8, 8), channels first, as most have", "(3, 8, 8) in 1 row (sub-03)", "--channels"]),
        (larger, [], ["(1, 9, 8) in 1 row (sub-03)", "--size"]),
        (truncated, [], ["row 4 (sub-03): 3.png cannot be read"]),
        (lambda p: (p.parent / "3.png").unlink(), [], ["row 4 (sub-03): 3.png does not exist"]),
        (nan_image, [], ["row 4 (sub-03): 3.npy holds NaN"]),
        (lambda p: edit(p, dx="HC"), [], ["all controls, in 12 rows (sub-00,"]),
        (lambda p: edit(p, dx="SZ"), [], ["all patients, in 12 rows (sub-00,"]),
        (lambda p: edit(p, dx=["HC"] * 11 + ["SZ"]), [], ["1 patients for 2 subgroups, in 1 row (sub-11)"]),
        (lambda p: None, ["--subgroups", "7"], ["6 patients for 7 subgroups, in 6 rows (sub-01,"]),
        (lambda p: edit(p, dx=["HC", "SZ", "BD"] * 4), [], ["'HC' (control) or 'SZ' (patient)", "'BD' in 4 rows"]),
        (lambda p: edit(p, dx=["HC", "SZ"] * 5 + ["HC", ""]), [], ["'' in 1 row (sub-11)"]),
        (lambda p: edit(p, id="same"), [], ["every subject id once", "12 rows (same,"]),
        (lambda p: None, ["--image", "path"], ["the column 'path'", "'scan'"]),
        (lambda p: None, ["--diagnosis", "group"], ["the column 'group'"]),
        (lambda p: None, ["--group", "person", "--truth", "kind"], ["the columns 'person', 'kind'"]),
        (lambda p: p.unlink(), [], ["subjects.csv, which does not exist"]),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), [], ["Expected a CSV or TSV table"]),
        (lambda p: None, ["--held-out", "0"], ["enough patients to train on and to hold out a share of 0.0"]),
        (lambda p: None, ["--method", "magic"], ["a method among kmeans", "'magic'"]),
        (lambda p: None, ["--set", "epoch=3"], ["settings of deep_ucsl among", "Received: epoch."]),
        (lambda p: None, ["--set", "epochs=many"], ["Expected epochs as int. Received: 'many'"]),
        (lambda p: None, ["--set", "epochs"], ["NAME=VALUE. Received: 'epochs'"]),
    ],
)  # fmt: skip
def test_a_wrong_input_gets_one_message_before_training(images_csv, capsys, monkeypatch, spoil, options, words):
    for module in ("deep", "with_encoder"):
        monkeypatch.setattr(f"phenogroups.methods.{module}.build_encoder", lambda *_: pytest.fail("built a network"))
    spoil(images_csv)
    before = sorted(images_csv.parent.iterdir())
    out = images_csv.parent / "run"
    assert cli.main(["discover", str(images_csv), *IMAGES, *options, "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.count("phenogroups:") == 1
    assert "Traceback" not in message
    for word in words:
        assert word in plain(message)
    assert sorted(images_csv.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("encoder=resnet18", "Expected at least 32 pixels a side for the encoder 'resnet18'"),
        ("encoder=mlp", "Choose 'light' for images"),
        ("augmentation=wild", "Expected an augmentation among"),
        ("device=abacus", "abacus"),
    ],
)
def test_a_setting_that_does_not_fit_is_said_before_training(images_csv, capsys, monkeypatch, setting, words):
    monkeypatch.setattr("phenogroups.networks.network.Network.forward", lambda *_: pytest.fail("trained"))
    out = images_csv.parent / "run"
    assert cli.main(["discover", str(images_csv), *IMAGES, "--out", str(out), "--set", setting]) == 2
    assert words in plain(capsys.readouterr().err)
    assert not out.exists()


def test_features_that_are_no_numbers_are_named(features_csv, tmp_path, capsys):
    edit(features_csv, x2=["", "two", *["1"] * 88])
    assert cli.main(["discover", str(features_csv), "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "2 cells that are not, in 2 rows (row1, row2): 'x2' of row1, 'x2' of row2" in plain(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("table", "words"), [("subjects.csv", "Expected a run folder"), ("none.csv", "Expected a run")]
)
def test_predict_without_a_run(features_csv, tmp_path, capsys, table, words):
    assert cli.main(["predict", str(tmp_path / "run"), str(tmp_path / table)]) == 2
    assert words in plain(capsys.readouterr().err)


def test_an_interruption_is_no_traceback(features_csv, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("phenogroups.methods.deep.expectation_maximisation", interrupt)
    assert cli.main(["discover", str(features_csv), "--out", str(tmp_path / "run")]) == 130
    assert "stopped; nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_signals_of_the_caller_are_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["discover", str(tmp_path / "none.csv")]) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    own = signal.Handlers.SIG_IGN
    try:
        signal.signal(signal.SIGTERM, own)
        with cli.stopped_by_sigterm():
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_message_is_not_markup(tmp_path, capsys):
    assert cli.main(["discover", str(tmp_path / "[red]x[/red].csv")]) == 2
    assert "[red]x[/red].csv" in capsys.readouterr().err


def test_sleeping_threads(monkeypatch, tmp_path):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    cli.main(["discover", str(tmp_path / "none.csv")])
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_discover_says_first_that_subgroups_follow_a_covariate(tmp_path, capsys):
    cohort = drawn_table(200, 8, subgroups=1, shared=0, site_effect=8)
    rows = pd.DataFrame(cohort.inputs, columns=[f"x{j}" for j in range(8)]).assign(diagnosis=cohort.diagnosis)
    pd.concat([rows, cohort.covariates], axis=1).to_csv(tmp_path / "subjects.csv", index=False)
    command = ["discover", str(tmp_path / "subjects.csv"), "--method", "kmeans", "--covariates", "age", "sex", "site"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "They may be site and not disease." in printed
    assert printed.index("Subgroups follow site") < printed.index("2 subgroups were looked for")
    assert (tmp_path / "run" / "confounds.csv").exists()


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A run of a table, and the command that made it."""
    folder = tmp_path_factory.mktemp("told")
    cohort = drawn_table(80, 6, seed=0)
    rows = pd.DataFrame(cohort.inputs, columns=[f"x{j}" for j in range(6)]).assign(diagnosis=cohort.diagnosis)
    rows.to_csv(folder / "subjects.csv", index=False)
    command = ["discover", str(folder / "subjects.csv"), "--out", str(folder / "my run"), *QUICK]
    assert cli.main(command) == 0
    return folder / "my run", command


def test_the_report_says_when_by_which_command_and_how(table_run):
    run, command = table_run
    page = (run / "report.html").read_text()
    assert html.escape(shlex.join(["phenogroups", *command]), quote=True).replace("&#x27;", "&#39;") in page
    assert json.loads((run / "recipe.json").read_text())["date"][:10] in page
    assert "Deep UCSL: patients are clustered while controls must stay undecided" in page


def test_open_shows_the_report_in_the_browser(table_run, monkeypatch, capsys, tmp_path):
    run, _ = table_run
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(shown.append(url)) or True)
    assert cli.main(["open", str(run)]) == 0
    assert shown == [(run / "report.html").resolve().as_uri()]
    assert "Opened: " in capsys.readouterr().out
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    assert cli.main(["open", str(run)]) == 0
    assert f"No browser was found on this machine. The page is {run / 'report.html'}." in capsys.readouterr().out
    (tmp_path / "compare.html").write_text("")
    assert cli.main(["open", str(tmp_path)]) == 0
    assert "compare.html" in capsys.readouterr().out
    assert cli.main(["open", str(tmp_path / "absent")]) == 2
    said = capsys.readouterr().err
    assert "Expected a folder with report.html or compare.html" in said
    assert "absent" in said


def test_the_report_is_printed_where_a_browser_is_found(table_run, monkeypatch, capsys, tmp_path):
    run, _ = table_run
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert cli.main(["report", str(run), "--pdf", str(tmp_path / "r.pdf")]) == 2
    said = capsys.readouterr().err
    assert "Expected a browser that prints: chromium" in said
    assert "print it to PDF there" in said
    monkeypatch.undo()
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho it has no sandbox >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert cli.main(["report", str(run), "--pdf", str(tmp_path / "r.pdf")]) == 2
    assert "Received: it has no sandbox. Print it in another browser." in capsys.readouterr().err
    assert not (tmp_path / "r.pdf").exists()
    broken.unlink()
    if shutil.which("chromium") is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    assert cli.main(["report", str(run), "--pdf", str(tmp_path / "r.pdf")]) == 0
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    assert f"Written: {tmp_path / 'r.pdf'}." in capsys.readouterr().out


def test_a_run_without_subgroups_keeps_its_page(tmp_path, capsys):
    (tmp_path / "choice.json").write_text("{}")
    (tmp_path / "report.html").write_text("<p>none</p>")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "stays as it is" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text() == "<p>none</p>"
