"""Every exported name has a numpy-style docstring: its parameters are those of the code, and its example runs."""

import doctest
import inspect
import re
from dataclasses import fields, is_dataclass
from importlib.metadata import version

import pytest

import phenogroups
from phenogroups import methods
from phenogroups.cli import main
from phenogroups.methods import METHODS
from phenogroups.methods.documentation import entries, sections
from phenogroups.methods.registry import class_of

PUBLIC = {name: getattr(phenogroups, name) for name in phenogroups.__all__}
OF_METHODS = {name: value for name, value in vars(methods).items() if callable(value) and not name.startswith("_")}
EXPORTED = {name: value for name, value in {**PUBLIC, **OF_METHODS}.items() if callable(value)}
RETURNED = {
    cls.__name__: cls
    for name in ("compare", "discover", "recipe", "score")
    for cls in [inspect.signature(EXPORTED[name]).return_annotation]
}


def test_every_method_is_exported():
    assert {class_of(name) for name in METHODS} <= set(EXPORTED.values())


@pytest.mark.parametrize("name", [*EXPORTED, *RETURNED])
def test_parameters_are_those_of_the_signature(name):
    exported = {**EXPORTED, **RETURNED}[name]
    known = sections(exported.__doc__)
    assert known[""].split("\n")[0].endswith((".", ").")), "a summary of one sentence"
    names = [f.name for f in fields(exported)] if is_dataclass(exported) else [*inspect.signature(exported).parameters]
    assert sorted(entries(known.get("Parameters", ""))) == sorted(names)
    assert all(text.strip() for _, text in entries(known.get("Parameters", "")).values())
    if inspect.isfunction(exported):
        assert known["Returns"]


@pytest.mark.parametrize("name", ["phenogroups", *EXPORTED])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exported = phenogroups if name == "phenogroups" else EXPORTED[name]
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(exported), {}, name, None, 0)
    assert found.examples, "an example"
    told: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found, out=told.append)
    assert failed == 0, "".join(told)


@pytest.mark.parametrize("name", ["Cohort", "Prediction", "Method", "DeepMethod"])
def test_public_methods_have_docstrings(name):
    of_class = {key: value for key, value in vars(EXPORTED[name]).items() if not key.startswith("_")}
    kinds = (property, classmethod, type(main))  # and no fields
    members = [key for key, value in of_class.items() if isinstance(value, kinds)]
    assert [key for key in members if not inspect.getdoc(getattr(EXPORTED[name], key))] == []


@pytest.mark.parametrize("name", ["split", "from_table"])
def test_examples_of_a_cohort_run(name):
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(getattr(phenogroups.Cohort, name)), {}, name, None, 0)
    assert doctest.DocTestRunner().run(found).failed == 0
    assert found.examples


def test_the_example_of_saving_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(methods.Method.save), {}, "save", None, 0)
    assert doctest.DocTestRunner().run(found).failed == 0
    assert (tmp_path / "my-model" / "model.safetensors").exists()


def test_help_and_the_command_line_show_the_settings(capsys):
    help(phenogroups.DeepUCSL)
    shown = capsys.readouterr().out
    assert main(["methods", "deep_ucsl"]) == 0
    printed = capsys.readouterr().out
    for text in (shown, printed):
        for setting in fields(phenogroups.DeepUCSL):
            assert re.search(rf"\b{setting.name} : ", text), setting.name
    assert "restarts : int, at least 1, default 3" in printed
    assert main(["methods", "morpho_simclr"]) == 0
    assert "SimCLR with augmentation='digits_morpho'" in capsys.readouterr().out
    assert main(["methods"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(METHODS)
    assert main(["methods", "magic"]) == 2
    assert "Expected a method among kmeans" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    assert phenogroups.__version__ == version("phenogroups")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"phenogroups {version('phenogroups')}\n"
