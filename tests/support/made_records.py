"""Rows of the table of results, as a job would leave them."""

from sla.reproduce.records import Record


def record_of(job, **values):
    about = {name: getattr(job, name) for name in ("key", "kind", "scale", "label", "seed")}
    members = [member.key for member in job.members]
    return Record(**about, settings=dict(job.settings), members=members, **values)
