"""`Workflow`: declared graphs of steps. Each step is a work item of its own, so siblings run on several workers."""

from holdfast.workflow.definition import Workflow
from holdfast.workflow.running import Workflows
from holdfast.workflow.spec import from_spec, to_spec

__all__ = ["Workflow", "Workflows", "from_spec", "to_spec"]
