"""Nodes for tests alone: what they give runs out of memory, or fails, at a call that is chosen."""

import copy

import comfy.model_management
from comfy.patcher_extension import WrappersMP
from comfy_api.latest import ComfyExtension, io

Node = io.ComfyNode  # by another name: Manager lists classes that inherit from that one by its own
ERRORS = {"memory": comfy.model_management.OOM_EXCEPTION, "fault": RuntimeError}


class Fault:
    """Strikes at calls `first` to `last`."""

    def __init__(self, first, last, error):
        self.calls, self.first, self.last, self.error = 0, first, last, ERRORS[error]

    def __call__(self):
        self.calls += 1
        if self.first <= self.calls <= self.last:
            raise self.error(f"a fault that was asked for, at call {self.calls}")


def _schema(node_id: str, kind: type) -> io.Schema:
    return io.Schema(node_id=node_id, category="faults", outputs=[kind.Output()], inputs=[
        kind.Input("whole"), io.Int.Input("first", default=1), io.Int.Input("last", default=1),
        io.Combo.Input("error", options=list(ERRORS))])


class FaultyModel(Node):
    @classmethod
    def define_schema(cls):
        return _schema("FaultyModel", io.Model)

    @classmethod
    def execute(cls, whole, first, last, error) -> io.NodeOutput:
        fault, clone = Fault(first, last, error), whole.clone()

        def apply_model(executor, *args, **kwargs):
            fault()
            return executor(*args, **kwargs)

        clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "faults", apply_model)
        return io.NodeOutput(clone)


class FaultyVAE(Node):
    @classmethod
    def define_schema(cls):
        return _schema("FaultyVAE", io.Vae)

    @classmethod
    def execute(cls, whole, first, last, error) -> io.NodeOutput:
        fault, faulty = Fault(first, last, error), copy.copy(whole)
        faulty.first_stage_model = copy.copy(whole.first_stage_model)
        decode = whole.first_stage_model.decode

        def failing(*args, **kwargs):
            fault()
            return decode(*args, **kwargs)

        faulty.first_stage_model.decode = failing
        return io.NodeOutput(faulty)


class Faults(ComfyExtension):
    async def get_node_list(self):
        return [FaultyModel, FaultyVAE]


async def comfy_entrypoint():
    return Faults()
