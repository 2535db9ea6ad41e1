"""`Workflow`: declared graphs of steps. Each step is a work item of its own, so siblings run on several workers."""

from holdfast.workflow.definition import Workflow
from holdfast.workflow.running import Workflows

__all__ = ["Workflow", "Workflows"]
