"""The table of results: what comes back is what went in, and what does not fit together is refused."""

import pytest

from sla.errors import InputError
from sla.reproduce.jobs import Job
from sla.reproduce.records import Record, add_records, read_records


def made(seed=0, accuracy=50.0, **changed):
    job = Job("train", {"data.source": 'a,"b"\n', "model.mean": (0.5, 0.5)}, seed, "small", "it, 'was'")
    values = {
        "key": job.key,
        "kind": "train",
        "scale": "small",
        "label": job.label,
        "seed": seed,
        "settings": dict(job.settings),
        "last_single": accuracy,
        "more": {"curve": [{"step": 1, "train": 0.5, "test": 0.25}], "ten-crop": 51.5, "gap": -2.5},
        "seconds": 1.25,
    }
    return Record(**values | changed)


def test_rows_come_back_as_they_were(tmp_path):
    table = tmp_path / "runs.csv"
    assert add_records(table, [made(0), made(1)]) == 2
    found = read_records(table)
    assert list(found) == [made(0).key, made(1).key]
    back = found[made(0).key]
    assert back.settings == {"data.source": 'a,"b"\n', "model.mean": [0.5, 0.5]}
    assert (back.last_single, back.last_aggregated, back.more, back.seconds) == (
        50.0,
        None,
        {"curve": [{"step": 1, "train": 0.5, "test": 0.25}], "ten-crop": 51.5, "gap": -2.5},
        1.25,
    )


def test_the_same_row_again_is_no_new_row_and_the_file_stays_the_same(tmp_path):
    table = tmp_path / "runs.csv"
    add_records(table, [made(1), made(0)])
    before = table.read_bytes()
    assert add_records(table, [made(0, finished="later")]) == 0
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",50.0,", ",51.0,", None),
        (",50.0,", ",150.0,", "last_single is 150.0, not a percentage"),
        (",50.0,", ",nan,", "last_single"),
        (",50.0,", ",many,", "last_single"),
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
    with pytest.raises(InputError, match=said) as caught:
        read_records(table)
    assert "row 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_with_other_numbers_is_refused_and_nothing_is_lost(tmp_path):
    table = tmp_path / "runs.csv"
    add_records(table, [made(0), made(1)])
    before = table.read_bytes()
    with pytest.raises(InputError, match=r"last_single 50\.0 and 60\.0"):
        add_records(table, [made(2), made(1, accuracy=60.0)])
    with pytest.raises(InputError, match=r"ten-crop 51\.5 and 9\.0"):
        add_records(table, [made(1, more=made(1).more | {"ten-crop": 9.0})])
    assert table.read_bytes() == before
