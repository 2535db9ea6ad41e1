"""All rows of a Postgres schema, to be put into an empty one: quicker than to do again what led to them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast import Holdfast

# Without what is computed, which nobody may put in.
_COLUMNS = """
    SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated = ''
    WHERE c.relnamespace = {schema}::regnamespace AND c.relkind = 'r' AND c.relname <> 'migrations'
        AND NOT a.attisdropped
    GROUP BY 1
"""
_SEQUENCES = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = {schema} AND last_value IS NOT NULL"


class Photograph(NamedTuple):
    """Rows as JSON by table with its columns, and how far each sequence has come."""

    rows: dict[tuple[str, str], str]
    sequences: dict[str, int]

    @classmethod
    async def of(cls, hf: Holdfast) -> Photograph:
        store = hf.journal.store
        schema = store.qualified("{s}").rstrip(".").replace('"', "'")
        rows: dict[tuple[str, str], str] = {}
        for table, columns in await store.fetch(_COLUMNS.replace("{schema}", schema)):
            ((found,),) = await store.fetch(f"SELECT json_agg(t)::text FROM {{s}}{table} t")
            if found is not None:
                rows[table, columns] = found
        return cls(rows, dict(await store.fetch(_SEQUENCES.replace("{schema}", schema))))

    async def put_into(self, hf: Holdfast) -> None:
        insert = "INSERT INTO {{s}}{0} ({1}) SELECT {1} FROM json_populate_recordset(NULL::{{s}}{0}, $1::text::json)"
        advance = "SELECT setval('{{s}}{}', $1)"
        await hf.journal.store.execute(
            # Who refers to whom is right already.
            ("SET LOCAL session_replication_role = replica", ()),
            *((insert.format(table, columns), (found,)) for (table, columns), found in self.rows.items()),
            *((advance.format(name), (last,)) for name, last in self.sequences.items()),
        )
