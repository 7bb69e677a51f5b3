# SPDX-License-Identifier: Apache-2.0
"""SGLang's kernels of speculative decoding for CPUs, in plain torch. Their callers are in
sglang.kernels.ops.speculative and sglang.kernels.ops.kvcache."""
import ctypes


def assign_extend_cache_locs_cpu(rows, req_to_token, starts, ends, out, _stride):
    """The slots [start, end) of each row, one row behind the other."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
        out[at:at + end - start] = req_to_token[row, start:end].to(out.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(rows, req_to_token, lengths, out, _stride, topk, steps):
    """The slots behind each sequence, `steps` for each branch."""
    assign_extend_cache_locs_cpu(rows, req_to_token, lengths, lengths + topk * steps, out.view(-1),
                                 _stride)


def fill_accept_out_cache_loc_cpu(accepted, slots, out):
    """The slots of accepted tokens, without gaps. accepted: -1 is none."""
    kept = accepted.reshape(-1)
    kept = kept[kept >= 0].long()
    out[:len(kept)] = slots[kept].to(out.dtype)


def fill_bonus_tokens_cpu(tokens, lengths, out, stride):
    """The last accepted token of each request, which has `stride` places."""
    for i, length in enumerate(lengths.tolist()):
        out[i] = tokens.reshape(-1)[i * stride + length - 1]


def copy_all_layer_kv_cache_cpu(addresses, sizes, targets, sources):
    """Move rows in the buffers of all layers: all are read before one is written."""
    targets, sources = targets.tolist(), sources.tolist()
    for address, size in zip(addresses.tolist(), sizes.tolist()):
        rows = [ctypes.string_at(address + source * size, size) for source in sources]
        for target, row in zip(targets, rows):
            ctypes.memmove(address + target * size, row, size)


def _link(parents, index, following, sibling, first):
    """The tree of one request: of each node its first child, and the next one of its parent.
    parents: None of the root, and of a node that hangs nowhere."""
    following.fill_(-1)
    sibling.fill_(-1)
    for node in range(len(parents) - 1, -1, -1):
        index[node] = first + node
        parent = parents[node]
        if parent is not None:
            sibling[node] = following[parent]
            following[parent] = node


def reconstruct_indices_from_tree_mask(mask, lengths, positions, index, following, sibling, n_rows,
                                       n):
    """mask: for each node which others are above it, in front of it."""
    trees = mask.reshape(n_rows, n, n).bool().tolist()
    for row, length in enumerate(lengths.tolist()):
        above = [[j for j in range(i) if trees[row][i][j]] for i in range(n)]
        for i, some in enumerate(above):
            positions[row * n + i] = length + len(some)
        _link([some[-1] if some else None for some in above], index[row], following[row],
              sibling[row], row * n)


def build_tree_kernel_efficient_cpu(parents, selected, lengths, mask, positions, index, following,
                                    sibling, topk, _depth, n, _mode):
    """selected: of each node but the root its place among all drafts, which are in groups of topk.
    parents: the place of each group's parent. mask: the form that SGLang wants on CPUs."""
    trees = mask.view(len(lengths), n, n)
    trees.fill_(False)
    for row, length in enumerate(lengths.tolist()):
        chosen, groups = selected[row].tolist(), parents[row].tolist()
        nodes = {place: node for node, place in enumerate(chosen, 1)}

        def parent(node):
            group = chosen[node - 1] // topk
            return nodes.get(groups[group]) if group else 0

        above = [None, *(parent(node) for node in range(1, n))]
        for node in range(n):
            depth, at = 0, node
            trees[row, node, [node, 0]] = True
            while at:
                depth, at = depth + 1, above[at] or 0
                trees[row, node, at] = True
            positions[row * n + node] = length + depth
        _link(above, index[row], following[row], sibling[row], row * n)


def verify_tree_greedy_cpu(predicts, accept_index, accept_token_num, candidates, retrive_index,
                           retrive_next_token, retrive_next_sibling, target_predict):
    """Go down each tree while a child is what the model says."""
    says = target_predict.reshape(-1).tolist()
    for row in range(len(candidates)):
        node, last = 0, int(retrive_index[row, 0])
        found = [last]
        while len(found) < accept_index.shape[1]:
            node = int(retrive_next_token[row, node])
            while node >= 0 and int(candidates[row, node]) != says[last]:
                node = int(retrive_next_sibling[row, node])
            if node < 0:
                break
            predicts[last] = says[last]
            last = int(retrive_index[row, node])
            found.append(last)
        predicts[last] = says[last]
        for i, at in enumerate(found):
            accept_index[row, i] = at
        accept_token_num[row] = len(found) - 1
