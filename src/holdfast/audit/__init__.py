"""The audit: conversation turns, tool calls and edit proposals as append-only facts with validity."""

from __future__ import annotations

from holdfast.audit.audit import Audit
from holdfast.audit.instants import Validity, format_timestamp, to_bool, to_int
from holdfast.audit.json_paths import get_json_path, remove_json_path, set_json_path
from holdfast.audit.previews import FilePreview, edited_paths, preview
from holdfast.audit.records import ConversationTurn, EditProposal, ToolCallDone, ToolCallRequested
from holdfast.audit.transactions import Transaction

__all__ = [
    "Audit",
    "ConversationTurn",
    "EditProposal",
    "FilePreview",
    "ToolCallDone",
    "ToolCallRequested",
    "Transaction",
    "Validity",
    "edited_paths",
    "format_timestamp",
    "get_json_path",
    "preview",
    "remove_json_path",
    "set_json_path",
    "to_bool",
    "to_int",
]
