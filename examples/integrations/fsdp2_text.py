"""Train a small GPT as torchtitan does: FSDP2, compiled blocks, recomputed activations, distributed checkpoints.

    torchrun --nproc-per-node 2 examples/integrations/fsdp2_text.py --backend ringleader

The model is made on the meta device and initialised when it is sharded; parameters are used and gathered in bfloat16,
gradients reduced in float32. Halfway it is saved with torch.distributed.checkpoint, and a model that began with other
weights goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from train_text import standard_library_text

LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 4, 128, 4, 64, 8


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) -> the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.silu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A byte-level GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) of bytes -> (batch, context, 256) of logits."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))

    def initialise(self, seed: int) -> None:
        """Set all weights; the same on every number of ranks, since DTensor draws as one process would."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.fill_(1.0) if "norm" in name else p.normal_(0.0, 0.02)


def sharded(mesh: DeviceMesh, compiled: bool, seed: int) -> Gpt:
    """The model, parallelised in torchtitan's order: recomputation, compilation, sharding, and only then memory."""
    with torch.device("meta"):
        model = Gpt()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, block in model.layers.items():
        block = checkpoint_wrapper(block, preserve_rng_state=False)
        if compiled:
            block.compile(fullgraph=True)
        model.layers[name] = block
    for block in model.layers.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    model.initialise(seed)
    return model


class Run:
    """A model in training, and its data."""

    def __init__(self, mesh: DeviceMesh, compiled: bool, seed: int) -> None:
        self.model = sharded(mesh, compiled, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1)

    def step(self, text: Tensor, number: int) -> float:
        """One step; the loss, as the mean of all ranks."""
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        window = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
        logits = self.model(window[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        return float(mean)

    def save(self, folder: str) -> None:
        """Write model and optimizer, each rank its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: str) -> None:
        """Read both back."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    """Train; rank 0 prints, and writes what `--result` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ringleader")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--eager", action="store_true", help="do not compile the blocks")
    parser.add_argument("--result", type=Path, help="file for the losses, as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    text = torch.frombuffer(bytearray(standard_library_text()), dtype=torch.uint8)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    run = Run(mesh, not arguments.eager, seed=1)
    losses = []
    for number in range(arguments.steps):
        if number == arguments.steps // 2:
            run.save(f"{folder[0]}/checkpoint")
            run = Run(mesh, not arguments.eager, seed=2)
            run.load(f"{folder[0]}/checkpoint")
        losses.append(run.step(text, number))
    if dist.get_rank() == 0:
        print(
            f"FSDP2 on {dist.get_backend()}, {dist.get_world_size()} ranks, "
            f"{'eager' if arguments.eager else 'compiled'} blocks: {len(losses)} steps, "
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}"
        )
        if arguments.result:
            arguments.result.write_text(json.dumps({"losses": losses}))
    dist.barrier()
    del run
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
