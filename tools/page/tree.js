// SPDX-License-Identifier: Apache-2.0
//
// The tree as an icicle chart on a canvas. A row below continues the prefix above it; width is
// pages. Drawing stops at the lowest row. Siblings that are too narrow are folded: some of them
// together are one rectangle, which opens like a node. So the number of rectangles depends on the
// canvas alone.

const ROOT = 2, DETACHED = 4; // enum kvt_node_flag
const ROW = 21, ROWS = 26, NARROW = 3, FOLD = 12; // pixels, but ROWS
const ages = [10, 60, 600, 3600, 6 * 3600], counts = [64, 16, 4, 2, 1];

export const scales = {
	age: ["below 10 s", "1 min", "10 min", "1 h", "6 h", "older"],
	uses: ["64 and more", "16", "4", "2", "1", "none"],
};

// /tree: a line of JSON, and a column of 32-bit numbers for each field.
export function parse(buffer) {
	const end = new Uint8Array(buffer).indexOf(10) + 1;
	const data = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 0, end)));

	data.columns = Object.fromEntries((data.fields ?? []).map((name, f) =>
		[name, new Uint32Array(buffer, end + 4 * f * data.n, data.n)]));
	return data;
}

// The nodes, linked. Two more stand for the whole pool and for what was detached.
export class Tree {
	#first;
	#children;

	constructor(data) {
		this.pageSize = data.page_size;
		this.now = data.now_s;
		this.n = data.n;
		this.pool = this.n;
		this.detached = this.n + 1;
		this.columns = data.columns;
		const order = new Int32Array(this.n + 2);

		for (let i = 0; i < order.length; i++)
			order[i] = i;
		this.#link();
		this.#list(order);
		this.#measure();
		this.#list(this.#widestFirst(order));
	}

	// Nodes changed while they were read: one without a parent is left out.
	#link() {
		const { node, parent, flags } = this.columns, n = this.n;
		let most = 0;

		for (let i = 0; i < n; i++)
			most = Math.max(most, node[i]);
		const index = new Int32Array(most + 1).fill(-1);

		for (let i = 0; i < n; i++)
			index[node[i]] = i;
		this.parent = new Int32Array(n + 2).fill(-1);
		for (let i = 0; i < n; i++)
			this.parent[i] = flags[i] & DETACHED ? this.detached :
				flags[i] & ROOT ? this.pool : index[parent[i]] ?? -1;
		if (this.parent.includes(this.detached))
			this.parent[this.detached] = this.pool;
	}

	// Children of node i are #children[#first[i]] to before #children[#first[i + 1]], in the
	// order in which they are given.
	#list(order) {
		const first = new Int32Array(this.n + 3), parent = this.parent;

		for (let i = 0; i < parent.length; i++)
			if (parent[i] >= 0)
				first[parent[i] + 1]++;
		for (let i = 1; i < first.length; i++)
			first[i] += first[i - 1];
		const next = first.slice(), children = new Int32Array(first[this.n + 2]);

		for (let k = 0; k < order.length; k++) {
			const i = order[k];

			if (parent[i] >= 0)
				children[next[parent[i]]++] = i;
		}
		this.#first = first;
		this.#children = children;
	}

	children(i) {
		return this.#children.subarray(this.#first[i], this.#first[i + 1]);
	}

	// Pages of each subtree. Parents that form a ring are not reached.
	#measure() {
		const order = new Int32Array(this.n + 2), total = new Uint32Array(this.n + 2);
		const first = this.#first, children = this.#children, parent = this.parent;
		let end = 1;

		order[0] = this.pool;
		for (let at = 0; at < end; at++)
			for (let c = first[order[at]]; c < first[order[at] + 1]; c++)
				order[end++] = children[c];
		total.set(this.columns.pages);
		while (--end > 0)
			total[parent[order[end]]] += total[order[end]];
		this.total = total;
	}

	// Sort nodes by falling width, and leave those of equal width in their order. By digits:
	// comparisons would take most of the time of a new tree.
	#widestFirst(order) {
		const total = this.total, most = total.reduce((a, b) => Math.max(a, b), 0);
		const DIGITS = 1 << 16;

		for (let shift = 0; shift < 32 && most >>> shift; shift += 16) {
			const place = new Int32Array(DIGITS + 1);
			const sorted = new Int32Array(order.length);
			const digit = (i) => DIGITS - 1 - (total[i] >>> shift & DIGITS - 1);

			for (let i = 0; i < total.length; i++)
				place[digit(i) + 1]++;
			for (let d = 1; d < DIGITS; d++)
				place[d] += place[d - 1];
			for (let k = 0; k < order.length; k++)
				sorted[place[digit(order[k])]++] = order[k];
			order = sorted;
		}
		return order;
	}

	value(i, field) {
		return this.columns[field][i] ?? 0;
	}

	isNode(i) {
		return i < this.n && !(this.value(i, "flags") & ROOT);
	}

	// The same node in a later tree, by its id; -1 if it is gone.
	find(id) {
		return this.columns.node.indexOf(id);
	}
}

// What is shown: a node, or of its children those from number `from` to before `to`.
class View {
	constructor(node, from = 0, to = -1) {
		this.node = node;
		this.from = from;
		this.to = to;
	}

	get folded() {
		return this.to >= 0;
	}
}

export class Icicle {
	constructor(canvas, describe) {
		this.canvas = canvas;
		this.context = canvas.getContext("2d");
		this.describe = describe; // (tree, view, folded) => its name
		this.colour = "age";
		this.path = [];
		this.rows = [];
		this.chosen = null; // a rectangle
		this.clock = 0;     // of the daemon, in seconds
	}

	// Show another tree, at the same place if that is still there.
	set(tree) {
		const old = this.tree, path = [new View(tree.pool)];
		const moved = (node) => node >= old.n ? node - old.n + tree.n
			: tree.find(old.value(node, "node"));

		for (const view of this.path.slice(1)) {
			const node = moved(view.node);

			if (node < 0 || !tree.total[node] || view.to > tree.children(node).length)
				break;
			path.push(new View(node, view.from, view.to));
		}
		if (this.chosen)
			this.chosen = { ...this.chosen, node: moved(this.chosen.node) };
		this.tree = tree;
		this.path = path;
	}

	open(view) {
		const last = this.path[this.path.length - 1];

		if (view.node === last.node && view.from === last.from && view.to === last.to)
			return;
		this.path.push(view);
		this.chosen = null;
	}

	back(n = 1) {
		this.path.length = Math.max(1, this.path.length - n);
		this.chosen = null;
	}

	theme() {
		const style = getComputedStyle(document.documentElement);
		const colour = (name) => style.getPropertyValue(`--${name}`).trim();

		this.colours = [0, 1, 2, 3, 4, 5].map((i) => colour(`scale${i}`));
		this.inks = this.colours.map((value) => readable(value));
		this.other = { folded: colour("folded"), ink: colour("ink"), lock: colour("lock"),
			panel: colour("panel"), free: colour("free") };
	}

	step(i) {
		const value = this.colour === "uses" ? this.tree.value(i, "uses")
			: this.tree.value(i, "age_s") + Math.max(0, this.clock - this.tree.now);
		const at = this.colour === "uses" ? counts.findIndex((least) => value >= least)
			: ages.findIndex((most) => value < most);

		return at < 0 ? 5 : at;
	}

	// Lay the rectangles out, row by row, each row from left to right.
	#lay(width) {
		const tree = this.tree, view = this.path[this.path.length - 1], rows = [];
		const all = view.folded ? tree.children(view.node).subarray(view.from, view.to)
			.reduce((sum, child) => sum + tree.total[child], 0) : tree.total[view.node];
		let row = [{ node: view.node, from: view.from, to: view.to, pages: all, x: 0, width,
			folded: view.folded, depth: 0 }];
		const scale = width / (all || 1);

		while (row.length && rows.length < ROWS) {
			const below = [];

			rows.push(row);
			for (const rect of row)
				if (!rect.folded || rect.depth === 0)
					this.#layChildren(rect, scale, rows.length, below);
			row = below;
		}
		for (const rect of rows.length === ROWS ? rows[ROWS - 1] : [])
			rect.deeper = tree.children(rect.node).length > 0 || rect.folded;
		this.rows = rows;
		const chosen = this.chosen;

		if (chosen)
			this.chosen = rows[chosen.depth]?.find((rect) => ["node", "from", "to"]
				.every((name) => rect[name] === chosen[name]));
	}

	#layChildren(rect, scale, depth, below) {
		const tree = this.tree, children = tree.children(rect.node);
		const end = rect.folded ? rect.to : children.length;
		let x = rect.x;

		for (let i = rect.from; i < end;) {
			const from = i, node = children[i];
			let pages = tree.total[children[i++]];
			const folded = pages * scale < NARROW && i < end;

			while (folded && i < end && pages * scale < FOLD)
				pages += tree.total[children[i++]];
			const what = folded ? { node: rect.node, from, to: i }
				: { node, from: 0, to: -1 };

			below.push({ ...what, pages, x, width: pages * scale, folded, depth });
			x += pages * scale;
		}
	}

	// Draw all; returns how many rectangles.
	draw() {
		const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth;
		const context = this.context;
		let n = 0;

		if (!this.tree || !width)
			return 0;
		this.#lay(width);
		const height = Math.max(6, this.rows.length) * ROW;

		this.canvas.style.height = `${height}px`;
		this.canvas.width = Math.round(width * ratio);
		this.canvas.height = Math.round(height * ratio);
		context.setTransform(ratio, 0, 0, ratio, 0, 0);
		context.font = '12px system-ui, "DejaVu Sans", sans-serif';
		context.textBaseline = "middle";
		for (const row of this.rows)
			for (const rect of row) {
				this.#rectangle(rect);
				n++;
			}
		if (this.chosen)
			this.#outline(this.chosen);
		return n;
	}

	#rectangle(rect) {
		const context = this.context, tree = this.tree, i = rect.node, y = rect.depth * ROW;
		const width = rect.width > 4 ? rect.width - 1 : Math.max(0.5, rect.width);
		const height = ROW - 1;
		const plain = rect.folded || !tree.isNode(i), step = plain ? 0 : this.step(i);

		context.fillStyle = rect.folded ? this.other.folded : plain ? this.other.free
			: this.colours[step];
		context.fillRect(rect.x, y, width, height);
		if (!rect.folded && tree.isNode(i)) {
			if (tree.value(i, "sealed") < tree.value(i, "pages"))
				this.#announced(rect.x, y, width, height);
			if (tree.value(i, "locks") > 0) {
				context.fillStyle = this.other.lock;
				context.fillRect(rect.x, y, width, 3);
			}
		}
		if (width > 44)
			this.#name(rect, y, width, plain ? this.other.ink : this.inks[step]);
		if (rect.deeper) {
			context.fillStyle = plain ? this.other.ink : this.inks[step];
			context.fillRect(rect.x + width / 4, y + height - 3, width / 2, 2);
		}
	}

	// Stripes: keys whose pages are still computed.
	#announced(x, y, width, height) {
		const context = this.context;

		context.save();
		context.beginPath();
		context.rect(x, y, width, height);
		context.clip();
		context.strokeStyle = this.other.panel;
		context.beginPath();
		for (let at = x - height; at < x + width; at += 7) {
			context.moveTo(at, y + height);
			context.lineTo(at + height, y);
		}
		context.stroke();
		context.restore();
	}

	// Only whole names: a cut number would be another.
	#name(rect, y, width, ink) {
		const context = this.context, name = this.describe(this.tree, rect);

		if (context.measureText(name).width > width - 8)
			return;
		context.fillStyle = ink;
		context.fillText(name, rect.x + 5, y + ROW / 2 + 1);
	}

	#outline(rect) {
		for (const [width, colour] of [[5, this.other.panel], [2, this.other.ink]]) {
			this.context.lineWidth = width;
			this.context.strokeStyle = colour;
			this.context.strokeRect(rect.x + 1, rect.depth * ROW + 1,
				Math.max(1, rect.width - 2), ROW - 3);
		}
		this.context.lineWidth = 1;
	}

	at(x, y) {
		const row = this.rows[Math.floor(y / ROW)] ?? [];
		let low = 0, high = row.length;

		while (low < high) {
			const middle = (low + high) >> 1;

			if (row[middle].x + row[middle].width <= x)
				low = middle + 1;
			else
				high = middle;
		}
		return low < row.length && row[low].x <= x ? row[low] : null;
	}

	// The rectangle beside the chosen one; itself if there is none.
	neighbour(key) {
		const from = this.chosen ?? this.rows[0][0], row = this.rows[from.depth];
		const i = row.indexOf(from);

		switch (this.chosen ? key : "") {
		case "ArrowLeft": return row[i - 1] ?? from;
		case "ArrowRight": return row[i + 1] ?? from;
		case "ArrowUp":
			return this.at(from.x + from.width / 2, (from.depth - 1) * ROW) ?? from;
		case "ArrowDown": return (this.rows[from.depth + 1] ?? []).find((rect) =>
			rect.x >= from.x - 0.01 && rect.x < from.x + from.width) ?? from;
		default: return from;
		}
	}

	view(rect) {
		return new View(rect.node, rect.from, rect.to);
	}
}

// Black or white, by the luminance of "#rrggbb".
function readable(colour) {
	const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);

	return 0.299 * r + 0.587 * g + 0.114 * b > 0.55 ? "#10161a" : "#ffffff";
}
