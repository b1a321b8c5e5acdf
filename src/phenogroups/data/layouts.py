"""Folder layouts that need no table: each gives the rows and the spec that a table would give."""

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from phenogroups.data.cohort import CohortError
from phenogroups.data.decoding import ENDINGS, PICTURES, VOLUMES, says_dicom
from phenogroups.data.selection import Labels
from phenogroups.data.table_files import read_table
from phenogroups.data.tables import Table, TableSpec

SPLITS = ("train", "val", "validation", "test")
# the patient in the names of Kermany's files; of X-rays, the numbering starts anew in the other split
XRAY_NAME = re.compile(r"(?P<patient>person\d+)_|(?P<control>(?:NORMAL\d*-)?IM-\d+)-")
OCT_NAME = re.compile(r"(?:CNV|DME|DRUSEN|NORMAL)-(?P<patient>\d+)-\d+")
OCT_KINDS = ("CNV", "DME", "DRUSEN")
ODIR_KINDS = {"D": "diabetes", "G": "glaucoma", "C": "cataract", "A": "amd", "M": "myopia"}  # the paper's five
ODIR_OTHERS = {"H": "hypertension", "O": "other"}


def read_layout(folder: str | Path, labels: Labels = "eye") -> Table:
    """Recognise the layout by its files: BIDS, sites, ODIR-5K, Kermany's X-rays or OCT, class folders, or images only.

    `labels`: whether ODIR-5K is read by the labels of each eye or of the patient.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CohortError(f"Expected a folder. Received: {folder}, which is none.")
    folder = _unpacked(folder)
    if (folder / "participants.tsv").is_file():
        return bids(folder)
    if (folder / "full_df.csv").is_file():
        return odir(folder, labels)
    if _site_tables(folder):
        return sites(folder)
    if any((folder / f"train-images-idx3-ubyte{ending}").is_file() for ending in ("", ".gz")):
        raise CohortError(
            f"Expected a file per subject. Received: the files of MNIST in {folder}, where one digit is the disease. "
            f"Name that digit instead of the folder: mnist7 --data {folder} (any of mnist0 to mnist9)."
        )
    classes = {path.name for _, path in _class_folders(folder)}
    if classes == {"NORMAL", "PNEUMONIA"} or ("NORMAL" in classes and classes <= {"NORMAL", *OCT_KINDS}):
        return kermany(folder)
    return class_folders(folder) if classes else image_folder(folder)


def _unpacked(folder: Path) -> Path:
    """The innermost folder where each outer one contains nothing else, as archives often unpack."""
    inside = _visible(folder)
    if len(inside) == 1 and inside[0].is_dir() and any(path.is_dir() for path in _visible(inside[0])):
        below = {path.name for path in _visible(inside[0])}
        return folder if inside[0].name in SPLITS and not below & {*SPLITS} else _unpacked(inside[0])
    return folder


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))


def _class_folders(folder: Path) -> list[tuple[str, Path]]:
    """(split, folder of one class); the split is "" where there are none."""
    inside = [path for path in _visible(folder) if path.is_dir()]
    splits = [path for path in inside if path.name.lower() in SPLITS]
    if splits:
        return [(part.name.lower(), kind) for part in splits for kind in _visible(part) if kind.is_dir()]
    return [("", kind) for kind in inside]


def _files(folder: Path) -> Iterable[Path]:
    """All visible files below the folder; any may be an image, since DICOM files may have no ending."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__MACOSX")) for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS) or says_dicom(path)


def class_folders(folder: Path) -> Table:
    """folder/<class>/* or folder/train/<class>/*: --control and --patient say which classes are which.

    Files in folder/<class>/<person>/* are one group per person; files beside each other are a person each.
    """
    rows, others, persons = [], [], 0
    for split, kind in _class_folders(folder):
        for path in _files(kind):
            if not _is_image(path):
                others.append(path.name)
                continue
            below = path.relative_to(kind).parts
            # with the name of the folder: 1.png in another folder is another person
            person = "/".join((split or folder.resolve().name, kind.name, below[0] if len(below) > 1 else path.stem))
            persons += len(below) > 1
            rows.append(_row(folder, path, kind.name, person, kind.name, split))
    if not rows:
        raise CohortError(f"Expected images in {folder}/<class>/. Received: none with {', '.join(ENDINGS)}.")
    notes = [] if persons else ["Every file is taken for another person; if some are of one person, bring a table."]
    notes += _left_out(others, "files that are no images")
    return _layout(folder, rows, notes, truth="kind" if len({row["kind"] for row in rows}) > 2 else None)


def image_folder(folder: Path) -> Table:
    """folder/*: images of subjects without a diagnosis, as for prediction."""
    paths = [path for path in _visible(folder) if path.is_file() and _is_image(path)]
    if not paths:
        raise CohortError(
            f"Expected a table, or a folder of images: <class>/*, BIDS (participants.tsv), sites with one each, "
            f"ODIR-5K (full_df.csv), or Kermany's X-rays or OCT. Received: {folder}, which has none of these."
        )
    rows = pd.DataFrame({"subject": [path.name for path in paths], "image": [path.name for path in paths]})
    return Table(rows, TableSpec(image="image", subject="subject"), folder)


def kermany(folder: Path) -> Table:
    """Kermany's X-rays and OCT: {train,test,val}/<class>/*.jpeg, whose names include the patient and the kind."""
    rows, unnamed = [], []
    is_xray = any(kind.name == "PNEUMONIA" for _, kind in _class_folders(folder))
    for split, kind in _class_folders(folder):
        for path in (path for path in _visible(kind) if path.name.lower().endswith(PICTURES)):
            match = (XRAY_NAME if is_xray else OCT_NAME).match(path.name)
            unnamed += [] if match else [path.name]
            person = match[match.lastgroup or 0] if match else path.stem
            pathogen = re.search("_(bacteria|virus)_", path.name)
            subgroup = (pathogen[1] if pathogen else "") if is_xray else kind.name
            person = f"{split or folder.resolve().name}-{person}" if is_xray else person
            rows.append(_row(folder, path, kind.name, person, subgroup, split))
    notes = _left_out(unnamed, "files whose names tell no patient, each taken for another person", kept=True)
    patient = ("PNEUMONIA",) if is_xray else OCT_KINDS
    return _layout(folder, rows, notes, truth="kind", control=("NORMAL",), patient=patient)


def odir(folder: Path, labels: Labels = "eye") -> Table:
    """ODIR-5K: full_df.csv with one row per eye; both eyes of a patient are one group, the paper's five are kept.

    With the label of each eye, an eye with another disease or with several is left out. With the labels of the patient,
    as in the published code, both eyes have the patient's disease (although one may be healthy): exactly one of normal
    and the five kinds; hypertension and other diseases are ignored.
    """
    table = read_table(folder / "full_df.csv")
    of_patient = ("N", *ODIR_KINDS)
    expected = ("ID", "filename", *(("labels",) if labels == "eye" else of_patient))
    missing = [column for column in expected if column not in table.columns]
    if missing:
        raise CohortError(
            f"Expected the columns {', '.join(expected)} in {folder / 'full_df.csv'}. Received none of: "
            f"{', '.join(missing)}. Take the public file."
        )
    # of several copies, the preprocessed ones, which are cropped to the eye and have one size
    places = {path.name: path for path in _files(folder) if path.name.lower().endswith(PICTURES)}
    places |= {path.name: path for path in _files(folder) if path.parent.name == "preprocessed_images"}
    rows, dropped = [], {"ambiguous": 0, **dict.fromkeys(ODIR_OTHERS.values(), 0)}
    for eye in table.to_dict("records"):
        if labels == "eye":
            letters = re.findall(r"[A-Z]", eye["labels"])
        else:
            letters = [letter for letter in of_patient if eye[letter].strip() == "1"]
        if len(letters) != 1 or letters[0] not in ("N", *ODIR_KINDS, *ODIR_OTHERS):
            dropped["ambiguous"] += 1
            continue
        (letter,) = letters
        if letter in ODIR_OTHERS:
            dropped[ODIR_OTHERS[letter]] += 1
            continue
        path = places.get(eye["filename"]) or folder / eye["filename"]  # a missing file is reported when it is read
        word = "normal" if letter == "N" else "ill"
        known = {"age": eye.get("Patient Age", ""), "sex": eye.get("Patient Sex", "")}
        rows.append(_row(folder, path, word, eye["ID"], ODIR_KINDS.get(letter, ""), "") | known)
    counts = ", ".join(f"{count} {name}" for name, count in dropped.items() if count)
    notes = [f"Left out, not among normal and the paper's five kinds: {counts} eyes."] if counts else []
    if not rows:
        raise CohortError(f"Expected eyes of the kinds N, {', '.join(ODIR_KINDS)} in full_df.csv. Received: none.")
    return _layout(folder, rows, notes, truth="kind", control=("normal",), patient=("ill",), covariates=("age", "sex"))


def bids(folder: Path, suffix: str = "T1w") -> Table:
    """BIDS: participants.tsv beside sub-*/[ses-*/]anat/*_T1w.nii.gz; scans of one participant are one group."""
    people = _participants(folder / "participants.tsv")
    rows, without = [], []
    for person in people.to_dict("records"):
        name = person["participant_id"].strip()
        home = folder / (name if name.startswith("sub-") else f"sub-{name}")
        scans = sorted(p for pattern in ("anat", "ses-*/anat") for p in home.glob(f"{pattern}/*_{suffix}.nii*"))
        without += [] if scans else [name]
        for scan in scans:
            known = {"image": scan.relative_to(folder).as_posix(), "subject": scan.name.removesuffix(".gz")[:-4]}
            rows.append(person | known)
    if not rows:
        raise CohortError(
            f"Expected scans as sub-*/anat/*_{suffix}.nii.gz in {folder}. Received: none of {len(people)} participants."
        )
    known = {*without, *(Path(row["image"]).parts[0] for row in rows)}
    unlisted = sorted(path.name for path in folder.glob("sub-*") if path.is_dir() and path.name not in known)
    notes = _left_out(without, f"participants without a {suffix} scan")
    notes += _left_out(unlisted, "folders that participants.tsv does not name")
    spec = TableSpec(image="image", subject="subject", group="participant_id")
    return Table(pd.DataFrame(rows), spec, folder, notes=tuple(notes))


def sites(folder: Path) -> Table:
    """<site>/participants.tsv and one volume per participant anywhere below it; the site becomes a covariate.

    The published code reads one folder of CAT12 maps per study with a table that is not public. Assumed here: a volume
    (NIfTI or .npy) belongs to the participant with whose id its name or that of a folder around it begins, be it
    mwp1sub-01_T1w.nii.gz, 01.npy or sub-01/anat/...; where a participant has grey-matter maps (mwp1), only those count.
    """
    rows, without, columns = [], [], None
    for table in _site_tables(folder):
        people = _participants(table)
        columns = set(people.columns) if columns is None else columns & set(people.columns)
        site = table.parent.name
        volumes = [path for path in _files(table.parent) if path.name.lower().endswith((*VOLUMES, ".npy"))]
        for person in people.to_dict("records"):
            name = person["participant_id"].strip()
            own = _own_volumes(volumes, table.parent, name)
            without += [] if own else [f"{site}/{name}"]
            for path in own:
                image = path.relative_to(folder).as_posix()
                rows.append(person | {"image": image, "subject": image, "person": f"{site}/{name}", "site": site})
    if not rows:
        raise CohortError(
            f"Expected volumes (NIfTI or .npy) named by participant_id in the sites of {folder}. Received: none of "
            f"{len(without)} participants ({', '.join(without[:3])})."
        )
    known = tuple(column for column in ("age", "sex") if column in (columns or ()))
    spec = TableSpec(image="image", subject="subject", group="person", covariates=(*known, "site"))
    notes = _left_out(without, "participants without a volume")
    return Table(pd.DataFrame(rows).fillna(""), spec, folder, notes=tuple(notes))


def _participants(path: Path) -> pd.DataFrame:
    people = read_table(path)
    if "participant_id" not in people.columns:
        raise CohortError(f"Expected the column participant_id in {path}. Received: {', '.join(people.columns[:10])}.")
    return people


def _site_tables(folder: Path) -> list[Path]:
    return [path / "participants.tsv" for path in _visible(folder) if (path / "participants.tsv").is_file()]


def _own_volumes(volumes: list[Path], site: Path, name: str) -> list[Path]:
    begins = re.compile(rf"(mwp1)?(sub-)?{re.escape(name.removeprefix('sub-'))}([^A-Za-z0-9]|$)")
    own = [path for path in volumes if any(begins.match(part) for part in path.relative_to(site).parts)]
    grey = [path for path in own if path.name.startswith("mwp1")]
    return grey or own


def _row(folder: Path, path: Path, word: str, person: str, kind: str, split: str) -> dict[str, str]:
    image = path.relative_to(folder).as_posix()
    return {"subject": image, "image": image, "diagnosis": word, "group": person, "kind": kind, "split": split}


def _layout(
    folder: Path, rows: list[dict[str, str]], notes: list[str], *, truth: str | None, control: tuple[str, ...] = (),
    patient: tuple[str, ...] = (), covariates: tuple[str, ...] = (),
) -> Table:  # fmt: skip
    spec = TableSpec(
        control=control, patient=patient, image="image", subject="subject", group="group", truth=truth,
        split="split" if len({row["split"] for row in rows}) > 1 else None, covariates=covariates,
    )  # fmt: skip
    return Table(pd.DataFrame(rows), spec, folder, notes=tuple(notes))


def _left_out(names: list[str], what: str, *, kept: bool = False) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return [f"{'Kept' if kept else 'Left out'}: {len(names)} {what} ({shown})."]
