"""The table of results: rows are read as written, older tables are converted, inconsistent ones refused."""

import csv
import io
import json
from pathlib import Path

import pytest

from made_records import record_of
from refusals import refused
from sla.reproduce.jobs import Job
from sla.reproduce.records import add_records, read_records
from sla.reproduce.work import folder_of, read_finished


def made(seed=0, accuracy=50.0, **changed):
    job = Job("train", {"data.source": 'a,"b"\n', "model.mean": (0.5, 0.5)}, seed, "small", "it, 'was'")
    curve = [{"step": 1, "train": 0.5, "test": 0.25}]
    values = {"scores": {"last": {"single": accuracy}}, "seconds": 1.25}
    values["more"] = {"curve": curve, "ten-crop": 51.5, "gap": -2.5}
    return record_of(job, **values | changed)


def test_rows_come_back_as_they_were(tmp_path):
    table = tmp_path / "runs.csv"
    assert add_records(table, [made(0), made(1)]) == 2
    found = read_records(table)
    assert list(found) == [made(0).key, made(1).key]
    back = found[made(0).key]
    assert back.settings == {"data.source": 'a,"b"\n', "model.mean": [0.5, 0.5]}
    assert (back.scores, back.more, back.seconds) == (made(0).scores, made(0).more, 1.25)
    assert (back.score("single"), back.score("aggregated")) == (50.0, None)


def test_the_same_row_again_is_no_new_row_and_the_file_stays_the_same(tmp_path):
    table = tmp_path / "runs.csv"
    add_records(table, [made(1), made(0)])
    before = table.read_bytes()
    assert add_records(table, [made(0, finished="later")]) == 0
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("50.0", "51.0", None),
        ("50.0", "150.0", "last single is 150.0, not a percentage"),
        ("50.0", "NaN", "scores.last.single"),
        ("50.0", '""many""', "scores.last.single"),
        ("51.5", "9999", "ten-crop is 9999"),
        ("51.5", "NaN", "ten-crop is nan"),
        ('""test"": 0.25', '""test"": 250', "test at 1 is 250"),
        ('""test"": 0.25', '""text"": 0.25', "a field"),
        (",small,", ",smal,", "did you mean 'small'"),
        (",1.25,", ",inf,", "seconds"),
        ("0.5, 0.5", "0.5, 0.6", "not that of its settings"),
        ("[0.5, 0.5]", "[0.5, 0.5", "a field"),
        ("key,kind", "key,kindness", "kind"),
    ],
)
def test_what_was_edited_is_refused_with_its_row(tmp_path, old, new, said):
    table = tmp_path / "runs.csv"
    add_records(table, [made()])
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new))
    if said is None:  # a number alone cannot be seen to be wrong
        read_records(table)
        return
    message = refused(said, read_records, table)
    assert "row 2" in message
    assert "\n" not in message


def test_what_a_killed_write_left_goes_and_other_files_stay(tmp_path):
    table = tmp_path / "runs.csv"
    for name in (".runs.csv.0123456789ab", ".runs.csv.mine", ".other.csv.0123456789ab"):
        (tmp_path / name).write_text("cut")
    add_records(table, [made()])
    kept = {".runs.csv.mine", ".other.csv.0123456789ab", ".runs.csv.lock", "runs.csv"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_job_with_other_numbers_is_refused_and_nothing_is_lost(tmp_path):
    table = tmp_path / "runs.csv"
    add_records(table, [made(0), made(1)])
    before = table.read_bytes()
    refused(r"last single 50\.0 and 60\.0", add_records, table, [made(2), made(1, accuracy=60.0)])
    refused(r"ten-crop 51\.5 and 9\.0", add_records, table, [made(1, more=made(1).more | {"ten-crop": 9.0})])
    assert table.read_bytes() == before


def test_calibration_errors_may_be_rounded_differently(tmp_path):
    table = tmp_path / "runs.csv"
    add_records(table, [made(0, more={"ece_single": 1.5137})])
    assert add_records(table, [made(0, more={"ece_single": 1.5136})]) == 0
    assert read_records(table)[made(0).key].more == {"ece_single": 1.5137}
    refused(r"ece_single 1\.5137 and 1\.6", add_records, table, [made(0, more={"ece_single": 1.6})])
    refused(r"ece_single 1\.5137 and None", add_records, table, [made(0, more={})])


COMMITTED = Path(__file__).resolve().parents[2] / "results" / "reproduce" / "runs.csv"
KINDS = ("single", "aggregated", "distilled")


def old_table(text):
    """The same table as it was written before `scores`: six columns of one number each."""
    rows = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        scores = json.loads(row.pop("scores"))
        for checkpoint in ("last", "best"):
            row |= {f"{checkpoint}_{kind}": scores.get(checkpoint, {}).get(kind, "") for kind in KINDS}
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def test_an_older_table_is_read_and_rewritten_without_loss(tmp_path):
    known = [
        record
        for record in read_records(COMMITTED).values()
        if all(set(values) <= set(KINDS) for values in record.scores.values())  # then there were three
    ]
    today, table = tmp_path / "today.csv", tmp_path / "runs.csv"
    assert add_records(today, known) == len(known)
    table.write_text(old_table(today.read_text()))
    assert "last_single" in table.read_text()
    assert read_records(table) == read_records(today)
    assert sum(bool(record.scores) for record in known) >= 12
    assert add_records(table, []) == 0
    assert table.read_bytes() == today.read_bytes()


def test_an_older_record_in_a_folder_is_read(tmp_path):
    job = Job("train", made().settings, 0, "small", "old")
    values = made().model_dump(exclude={"scores"}) | {"last_single": 50.0, "best_single": None}
    folder_of(job, tmp_path).mkdir(parents=True)
    (folder_of(job, tmp_path) / "record.json").write_text(json.dumps(values))
    record = read_finished(job, tmp_path)
    assert (record.key, record.scores) == (made().key, made().scores)


def test_every_committed_row_is_a_job_of_the_paper():
    """No setting of a recipe has changed since it was run."""
    from sla.reproduce.jobs import cells_of, jobs_of
    from sla.reproduce.names import EXPERIMENTS

    cells = [cell for name in EXPERIMENTS for cell in cells_of(name, "small", 5, removed=True)]
    assert set(read_records(COMMITTED)) <= {job.key for job in jobs_of(cells)}


def test_what_was_removed_from_the_code_is_shown_from_its_records_alone():
    """No run of it is asked for, and each has a recorded number, which nothing could make again."""
    from sla.reproduce.costs import runs_of
    from sla.reproduce.jobs import cells_of
    from sla.reproduce.paper import experiment
    from sla.reproduce.render import render

    can_run = cells_of("student-pilots", "small", 1)
    gone = [cell for cell in cells_of("student-pilots", "small", 1, removed=True) if cell not in can_run]
    assert [cell.row for cell in gone] == ["stop", "late", "averaged"]
    asked, known = {job.key for job in runs_of("student-pilots", "small", 1)}, read_records(COMMITTED)
    markdown, page = render({cell.job.key: known[cell.job.key] for cell in gone})
    for cell in gone:
        assert cell.job.key not in asked
        row, number = experiment("student-pilots").rows[cell.row], known[cell.job.key].score(cell.score)
        assert f"{row.label} (removed from the code) | {number:.2f} | 1 |" in markdown
    assert page.count("(removed from the code)") == 3
