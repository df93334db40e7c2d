"""L2RM's networks and training step in PyTorch, one caption at a time, as in public code.

`bench.peer` times our code against this. It was written from the papers and the authors' code,
and `tests/experiments/test_caption_loop.py` compares it with the arrays that their code computed.
Parameters have the names of SGRAF's code.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.bench.solvers import DUMMY_COST, authors_iterates

BLOCK = 128  # images, and captions, that evaluation scores at once


class Pairs(NamedTuple):
    """Images `[n, regions, features]`, word indices `[n, words]` and caption lengths `[n]`."""

    images: Tensor
    tokens: Tensor
    lengths: Tensor


class Network(nn.Module):
    """Encoders with the head `sgr` or `saf`: `(pairs) -> similarities [images, captions]`."""

    def __init__(
        self,
        head: str,
        *,
        vocabulary: int,
        regions: int,
        features: int,
        word_dim: int,
        embed_dim: int,
        sim_dim: int,
        sgr_steps: int = 3,
        dropout: float = 0.4,
    ):
        super().__init__()
        self.img_enc = nn.ModuleDict({"fc": nn.Linear(features, embed_dim)})
        gru = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=True)
        self.txt_enc = nn.ModuleDict({"embed": nn.Embedding(vocabulary, word_dim), "cap_rnn": gru})
        self.sim_enc = _Similarity(head, regions, embed_dim, sim_dim, sgr_steps, dropout)
        self.dropout = dropout

    def encode_images(self, images: Tensor) -> Tensor:
        return _unit(self.img_enc.fc(images))

    def encode_captions(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words = functional.dropout(self.txt_enc.embed(tokens), self.dropout, self.training)
        packed = nn.utils.rnn.pack_padded_sequence(
            words, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        both, _ = nn.utils.rnn.pad_packed_sequence(self.txt_enc.cap_rnn(packed)[0], True)
        forward, backward = both.chunk(2, dim=2)
        return _unit((forward + backward) / 2)

    def forward(self, pairs: Pairs) -> Tensor:
        images = self.encode_images(pairs.images)
        words = self.encode_captions(pairs.tokens, pairs.lengths)
        return self.sim_enc(images, words, pairs.lengths)


class _Similarity(nn.Module):
    def __init__(
        self, head: str, regions: int, embed_dim: int, sim_dim: int, sgr_steps: int, dropout: float
    ):
        super().__init__()
        norms = nn.BatchNorm1d(regions), nn.BatchNorm1d(embed_dim)
        self.v_global_w = _Attention(embed_dim, dropout, *norms)
        self.t_global_w = _Attention(embed_dim, dropout)
        self.sim_tranloc_w = nn.Linear(embed_dim, sim_dim)
        self.sim_tranglo_w = nn.Linear(embed_dim, sim_dim)
        self.sim_eval_w = nn.Linear(sim_dim, 1)
        if head == "sgr":
            self.SGR_module = nn.ModuleList(_Reasoning(sim_dim) for _ in range(sgr_steps))
        else:
            self.SAF_module = _Filtration(sim_dim)
        self.head = head

    def forward(self, images: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        overall = self.v_global_w(images, images.mean(1))
        columns = []
        for caption, length in zip(words, lengths.tolist(), strict=True):
            own = caption[None, :length]
            summary = self.t_global_w(own, own.mean(1))
            columns.append(self._column(images, overall, own.repeat(len(images), 1, 1), summary))
        return torch.cat(columns, 1)

    def _column(self, images: Tensor, overall: Tensor, words: Tensor, summary: Tensor) -> Tensor:
        """Return the similarities of one caption with every image, [images, 1]."""
        local = _unit(self.sim_tranloc_w((_attend(images, words) - words) ** 2))
        whole = _unit(self.sim_tranglo_w((overall - summary) ** 2))
        nodes = torch.cat([whole[:, None], local], 1)
        if self.head == "sgr":
            for module in self.SGR_module:
                nodes = module(nodes)
            vector = nodes[:, 0]
        else:
            vector = self.SAF_module(nodes)
        return torch.sigmoid(self.sim_eval_w(vector))


class _Attention(nn.Module):
    def __init__(self, dim: int, dropout: float, *norms: nn.Module):
        super().__init__()
        end = nn.Tanh(), nn.Dropout(dropout)
        self.embedding_local = nn.Sequential(nn.Linear(dim, dim), *norms[:1], *end)
        self.embedding_global = nn.Sequential(nn.Linear(dim, dim), *norms[1:], *end)
        self.embedding_common = nn.Sequential(nn.Linear(dim, 1))

    def forward(self, local: Tensor, mean: Tensor) -> Tensor:
        common = self.embedding_local(local) * self.embedding_global(mean)[:, None]
        weights = self.embedding_common(common).softmax(1)
        return _unit((weights * local).sum(1))


class _Reasoning(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.graph_query_w = nn.Linear(dim, dim)
        self.graph_key_w = nn.Linear(dim, dim)
        self.sim_graph_w = nn.Linear(dim, dim)

    def forward(self, nodes: Tensor) -> Tensor:
        edges = torch.bmm(self.graph_query_w(nodes), self.graph_key_w(nodes).transpose(1, 2))
        return torch.relu(self.sim_graph_w(torch.bmm(edges.softmax(-1), nodes)))


class _Filtration(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.attn_sim_w = nn.Linear(dim, 1)
        self.bn = nn.BatchNorm1d(1)

    def forward(self, nodes: Tensor) -> Tensor:
        gates = torch.sigmoid(self.bn(self.attn_sim_w(nodes).transpose(1, 2)))
        weights = gates / (gates.sum(-1, keepdim=True) + 1e-8)
        return _unit(torch.bmm(weights, nodes)[:, 0])


def _attend(images: Tensor, words: Tensor) -> Tensor:
    scores = functional.leaky_relu(torch.bmm(images, words.transpose(1, 2)), 0.1)
    weights = (9.0 * _unit(scores)).softmax(1)
    return _unit(torch.bmm(weights.transpose(1, 2), images))


def _unit(x: Tensor) -> Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-8)


class Trainer:
    """L2RM's training step after the warm-up; the defaults are those for Flickr30K."""

    def __init__(
        self,
        network: Network,
        size: int,
        *,
        learning_rate: float = 2e-4,
        cost_learning_rate: float = 2e-6,
        rho: float = 0.1,
        epsilon: float = 0.01,
        tau: float = 0.05,
        margin: float = 0.2,
        grad_clip: float = 2.0,
    ):
        self.network, self.size = network, size
        self.rho, self.epsilon, self.tau, self.margin = rho, epsilon, tau, margin
        self.grad_clip = grad_clip
        self.cost = nn.Linear(size, size)
        with torch.no_grad():
            self.cost.weight.copy_(-torch.eye(size))
            self.cost.bias.fill_(1.0)
        self.cost.to(next(network.parameters()).device)
        self.optimiser = torch.optim.Adam(network.parameters(), learning_rate)
        self.cost_optimiser = torch.optim.Adam(self.cost.parameters(), cost_learning_rate)

    def step(
        self,
        matched: Pairs,
        mismatched: Pairs,
        reserved: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> dict[str, float]:
        """Update network and cost once and return the losses and the gradient norm.

        The cost is trained on a batch in which some matched images (`reserved`, rows) replace
        mismatched ones (at `places`, rows). Both are drawn at random unless given.
        """
        if reserved is None:
            count = np.random.randint(1, max(1, self.size // 10) + 1)
            reserved, places = (np.random.permutation(self.size)[:count] for _ in range(2))
        cost_loss = self._update_cost(matched, mismatched, reserved, places)
        self.network.train()
        loss = self._triplet(self.network(matched)) + self._rematching(self.network(mismatched))
        self.optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.grad_clip)
        self.optimiser.step()
        return {"loss": loss.item(), "loss_cost": cost_loss, "grad_norm": norm.item()}

    def _update_cost(self, matched, mismatched, reserved, places) -> float:
        images = mismatched.images.clone()
        images[places] = matched.images[reserved]
        supervision = torch.zeros(self.size, self.size, device=images.device)
        supervision[places, reserved] = 1.0
        self.network.eval()
        with torch.no_grad():
            sims = self.network(matched._replace(images=images)).float()
        loss = (supervision * self._costs(sims)).sum()
        self.cost_optimiser.zero_grad()
        loss.backward()
        self.cost_optimiser.step()
        return loss.item()

    def _costs(self, sims: Tensor) -> Tensor:
        return torch.relu(self.cost(sims))

    def _triplet(self, sims: Tensor) -> Tensor:
        sims = sims.float()  # of products in bfloat16, too
        positive = sims.diagonal()
        diagonal = torch.eye(len(sims), dtype=torch.bool, device=sims.device)
        hinges = (
            (self.margin + sims - pair).clamp(min=0).masked_fill(diagonal, 0.0)
            for pair in (positive[:, None], positive[None, :])
        )
        return sum(each.max(axis)[0].sum() for axis, each in zip((1, 0), hinges, strict=True))

    def _rematching(self, sims: Tensor) -> Tensor:
        sims = sims.float()
        with torch.no_grad():
            costs = self._costs(sims).clamp(min=1e-10).double().cpu().numpy()
        plan = torch.from_numpy(transport(costs, self.rho, self.epsilon)).float().clamp(min=1e-10)
        plan = plan.to(sims.device)
        loss = 0.0
        for axis in (1, 0):
            target = plan / plan.sum(axis, keepdim=True)
            logs = (sims / self.tau).log_softmax(axis)
            symmetric_kl = (target - logs.exp()) * (target.log() - logs)
            loss = loss + 0.5 * symmetric_kl.sum(axis).mean()
        return loss


def transport(costs: np.ndarray, rho: float, epsilon: float) -> np.ndarray:
    """Return the plan of L2RM's transport (float64) with the authors' stop and no diagonal."""
    size, largest = len(costs), costs.max()
    extended = np.full((size + 1, size + 1), DUMMY_COST * largest)
    extended[:-1, :-1] = np.where(np.eye(size, dtype=bool), np.inf, costs)
    extended[-1, -1] += (DUMMY_COST + 1) * largest
    weights = np.append(np.full(size, 1 / size), 1 - rho)
    scaled, before = extended / epsilon, np.zeros(size + 1)
    for u, v in islice(authors_iterates(scaled, weights, weights), 1000):  # noqa: B007
        if epsilon * np.linalg.norm(u - before) < 1e-3:
            break
        before = u
    return np.exp(u[:, None] + v[None, :] - scaled)[:-1, :-1]


@torch.no_grad()
def score(network: Network, images: Tensor, tokens: list[Tensor], lengths: Tensor) -> np.ndarray:
    """Return the similarities of all images with all captions, encoders included."""
    network.eval()
    sims = np.empty((len(images), len(tokens)), np.float32)
    regions = torch.cat([network.encode_images(part) for part in images.split(BLOCK)])
    for columns in _blocks(len(tokens)):
        padded = nn.utils.rnn.pad_sequence(tokens[columns], batch_first=True)
        words = network.encode_captions(padded, lengths[columns])
        for rows in _blocks(len(images)):
            sims[rows, columns] = network.sim_enc(regions[rows], words, lengths[columns])
    return sims


def _blocks(count: int) -> Iterator[slice]:
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))
