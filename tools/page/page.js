// SPDX-License-Identifier: Apache-2.0
//
// The page of kvtmetricsd: asks for /page.json about once a second while it is visible, and for
// /tree when the counters say that something changed. Texts of the daemon become text nodes.

import { Icicle, Tree, parse, scales } from "./tree.js";

const POLL_MS = 1100;
const SEVERAL = 0xffffffff; // of a node's sealer
const MOST_NAMESPACES = 8;
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en").format;

let facts = null, before = null;
let version; // of the tree that is shown

// ---- texts

function age(seconds) {
	const units = [[86400, "d"], [3600, "h"], [60, "min"]];

	for (const [size, unit] of units)
		if (seconds >= 2 * size)
			return `${Math.floor(seconds / size)} ${unit}`;
	return `${Math.floor(seconds)} s`;
}

function time(ns) {
	return ns < 1e3 ? `${ns} ns` : ns < 1e6 ? `${+(ns / 1e3).toPrecision(3)} µs`
		: ns < 1e9 ? `${+(ns / 1e6).toPrecision(3)} ms` : `${+(ns / 1e9).toPrecision(3)} s`;
}

function bytes(n) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let unit = 0;

	for (; n >= 1024 && unit < units.length - 1; unit++)
		n /= 1024;
	return `${+n.toPrecision(3)} ${units[unit]}`;
}

const plural = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
const percent = (part, all) => all ? 100 * part / all : 0;
const rate = (part, all) => all ? `${(100 * part / all).toFixed(1)} %` : "–"; // nothing has none
const sum = (list) => list.reduce((all, one) => all + one, 0);
const refusedOf = (one) => sum(Object.values(one.refused));

// An element with children: texts, elements.
function make(name, properties, ...children) {
	const element = Object.assign(document.createElement(name), properties);

	element.append(...children);
	return element;
}

function meter(parts, all) {
	return make("div", { className: "meter" }, ...parts.map(([className, value]) => {
		const part = make("i", { className });

		part.style.width = `${percent(value, all)}%`;
		return part;
	}));
}

function rows(id, list, cells) {
	const body = $(id).tBodies[0];

	body.replaceChildren(...list.map((item) => make("tr", {}, ...cells(item))));
	if (!list.length)
		body.append(make("tr", {}, make("td", { className: "none", colSpan: 11 }, "none")));
}

const cell = (text, className = "") => make("td", { className }, text);
const amount = (n) => cell(number(n), "number");

// ---- names

function namespaceName(id) {
	const space = facts.namespaces.find((one) => one.namespace === id);

	return space?.label ? `“${space.label}”` : `namespace ${id}`;
}

function sealerName(sealer) {
	const session = facts.sessions.find((one) => one.rank === 0 && one.sealer === sealer &&
		one.state !== "free");

	if (sealer === SEVERAL)
		return "several sessions";
	if (!sealer)
		return "no session yet";
	if (!session)
		return "a session that has ended";
	return `session ${session.session}${session.label && ` “${session.label}”`}`;
}

// Of a rectangle of the chart, or of a view.
function nameOf(tree, rect) {
	const i = rect.node, start = tree.value(i, "start") * tree.pageSize;

	if (rect.folded)
		return `${number(rect.to - rect.from)} small`;
	if (i === tree.pool)
		return "pool";
	if (i === tree.detached)
		return "detached";
	if (!tree.isNode(i))
		return namespaceName(tree.value(i, "namespace"));
	return `${number(start)}–${number(start + tree.value(i, "pages") * tree.pageSize)}`;
}

function detailsOf(tree, rect) {
	const i = rect.node, value = (field) => tree.value(i, field);
	const details = [make("b", {}, nameOf(tree, rect)), `: ${plural(rect.pages, "page")}`];

	if (rect.folded)
		return [...details, " in branches too narrow to draw; Enter or a click opens them"];
	if (i === tree.pool)
		return [...details, " cached or being computed"];
	if (i === tree.detached)
		return [...details, " that never match again, kept until their locks end"];
	if (!tree.isNode(i))
		return [...details, ` in ${plural(tree.children(i).length, "branch")
			.replace("branchs", "branches")}`];
	const computed = value("pages") - value("sealed");
	const idle = value("age_s") + Math.max(0, icicle.clock - tree.now);

	details[1] = ` tokens in ${namespaceName(value("namespace"))}: ` +
		plural(value("pages"), "page");
	if (computed)
		details.push(`, ${number(computed)} of them being computed`);
	if (value("sides"))
		details.push(` and ${plural(value("sides"), "side page")}`);
	details.push(`, ${plural(rect.pages, "page")} with all below; `,
		value("locks") ? `locked by ${plural(value("locks"), "lease")}` : "not locked",
		`; ${plural(value("uses"), "use")}; last used ${age(idle)} ago; computed by `,
		sealerName(value("sealer")));
	return details;
}

// ---- the tree

const icicle = new Icicle($("tree"), nameOf);
let pointer = null; // where the mouse is on the canvas

function drawTree() {
	const began = performance.now();

	if (!icicle.tree)
		return;
	icicle.clock = facts.now_s;
	$("tree").dataset.rectangles = icicle.draw();
	$("tree").dataset.ms = (performance.now() - began).toFixed(1);
	tellNode();
}

function tellNode() {
	const rect = pointer && icicle.at(...pointer) || icicle.chosen || icicle.rows[0]?.[0];

	if (rect)
		$("node").replaceChildren(...detailsOf(icicle.tree, rect));
}

function drawPath() {
	$("path").replaceChildren(...icicle.path.map((view, i) => make("button", {
		type: "button",
		onclick: () => { icicle.back(icicle.path.length - 1 - i); moved(); },
	}, nameOf(icicle.tree, view))));
}

function drawScale() {
	$("scale").replaceChildren(...scales[icicle.colour].map((text, i) => {
		const key = make("i", { className: "key" });

		key.style.background = `var(--scale${i})`;
		return make("li", {}, key, text);
	}), ...[["lock", "top edge: locked"], ["folded", "folded"]].map(([name, text]) => {
		const key = make("i", { className: "key" });

		key.style.background = `var(--${name})`;
		return make("li", {}, key, text);
	}));
}

// Screen readers tell what the user chose, not each second's figures.
function byUser(change) {
	$("node").ariaLive = "polite";
	change();
	setTimeout(() => { $("node").ariaLive = "off"; }, 500);
}

function moved() {
	drawPath();
	byUser(drawTree);
}

function listen() {
	const canvas = $("tree");

	canvas.addEventListener("mousemove", (event) => {
		pointer = [event.offsetX, event.offsetY];
		tellNode();
	});
	canvas.addEventListener("mouseleave", () => { pointer = null; tellNode(); });
	canvas.addEventListener("click", (event) => {
		const rect = icicle.at(event.offsetX, event.offsetY);

		if (rect?.depth === 0 && icicle.path.length > 1)
			icicle.back();
		else if (rect)
			icicle.open(icicle.view(rect));
		moved();
	});
	canvas.addEventListener("keydown", (event) => {
		if (!icicle.tree || event.ctrlKey || event.altKey || event.metaKey)
			return;
		if (event.key.startsWith("Arrow")) {
			pointer = null;
			icicle.chosen = icicle.neighbour(event.key);
			byUser(drawTree);
		} else if (event.key === "Enter" && icicle.chosen) {
			icicle.open(icicle.view(icicle.chosen));
			moved();
		} else if (["Escape", "Backspace", "Home"].includes(event.key)) {
			icicle.back(event.key === "Home" ? icicle.path.length : 1);
			moved();
		} else {
			return;
		}
		event.preventDefault();
	});
	$("colour").addEventListener("change", (event) => {
		icicle.colour = event.target.value;
		drawScale();
		drawTree();
	});
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
		icicle.theme();
		drawTree();
	});
	new ResizeObserver(() => requestAnimationFrame(drawTree)).observe($("path"));
}

// ---- the rest

function drawHead() {
	$("instance").textContent = facts.instance_name;
	$("about").textContent = `${facts.version}, up ${age(facts.uptime_s)}, ` +
		`cache ${age(facts.cache_age_s)} old, ` +
		`epoch ${facts.epoch}, policy ${facts.policy}, ${facts.backend} pool`;
	document.title = `kvtrunk ${facts.instance_name}`;
}

// The hit rate first, then what the operator must know of it.
function drawFigures() {
	const hour = facts.history, count = facts.counters;
	const asked = sum(hour.input_positions), refused = sum(hour.refusals);
	// An operation may need two, and frees as many before it begins.
	const spare = Math.max(2, facts.max_nodes / 20);

	$("figures").replaceChildren(make("b", {}, rate(sum(hour.hit_positions), asked)),
		asked ? "of the tokens asked for were hits in the last hour; "
			: "nothing was asked for in the last hour; ",
		`${rate(count.hit_positions, count.input_positions)} since the cache began. ` +
		`Refused attempts: ${number(refused)} in the last hour, ` +
		`${number(count.refusals)} since the cache began. ` +
		`Refused connections: ${number(facts.refused_connections)} ` +
		`since the process began${facts.refused_connections ? "; its log says why" : ""}.`);
	$("refused").hidden = !refused;
	$("refused").textContent = `▲ ${plural(refused, "attempt")} refused in the last hour, ` +
		"which no hit rate counts. Reasons since the cache began: " +
		Object.entries(facts.refused).map(([why, n]) => `${number(n)} ${why}`).join(", ");
	$("nodes-full").hidden = count.live_nodes < facts.max_nodes - spare;
	$("nodes-full").textContent = `▲ ${number(count.live_nodes)} of ` +
		`${number(facts.max_nodes)} tree nodes are in use: leaves are evicted for nodes, ` +
		"and pages stay unused. Raise max_nodes.";
}

function drawPool() {
	const count = facts.counters, states = [
		["protected", "cached, locked", count.protected_pages],
		["evictable", "cached, can be evicted", count.evictable_pages],
		["private", "private to a session", count.private_pages],
		["quarantined", "quarantined", count.quarantined_pages],
		["free", "free", count.free_pages],
	];
	const spaces = facts.namespaces.toSorted((a, b) => b.cached - a.cached);
	const rest = spaces.splice(MOST_NAMESPACES);

	$("pool-size").textContent = `${number(facts.usable_pages)} pages of ${
		plural(facts.page_size, "token")}, ${bytes(facts.page_bytes)} each`;
	$("pool-bar").replaceChildren(...states.map(([className, , pages]) => {
		const part = make("i", { className });

		part.style.width = `${percent(pages, facts.usable_pages)}%`;
		return part;
	}));
	$("pool-states").replaceChildren(...states.map(([className, text, pages]) => make("li", {},
		make("i", { className: `key ${className}` }),
		`${text} ${number(pages)} (${percent(pages, facts.usable_pages).toFixed(1)} %)`)));
	rows("namespaces", spaces, (one) => [cell(namespaceName(one.namespace)), amount(one.cached),
		amount(one.protected), amount(one.nodes),
		cell(rate(one.hit_positions, one.input_positions), "number"),
		amount(refusedOf(one)),
		make("td", {}, meter([["protected", one.protected], ["evictable", one.evictable]],
			facts.usable_pages))]);
	if (rest.length)
		$("namespaces").tBodies[0].append(make("tr", {}, make("td", { className: "none",
			colSpan: 7 }, `and ${number(rest.length)} more`)));
}

// A line for each list of values; gaps where the daemon did not answer or a value is null.
function drawChart(id, lines, unit, least) {
	const svg = $(id), width = svg.clientWidth || 400, height = svg.clientHeight || 99;
	const { ago_s: ago, seconds } = facts.history;
	const minutes = [4, 8, 20, 40].find((most) => !ago.length || ago[0] <= 60 * most) ?? 60;
	const most = Math.max(least, ...lines.flatMap(([, values]) => values));
	const x = (s) => 46 + (width - 52) * (1 - Math.min(1, s / 60 / minutes));
	const y = (value) => height - 18 - (height - 30) * value / most;
	const node = (name, attributes, text = "") => {
		const element = document.createElementNS("http://www.w3.org/2000/svg", name);

		for (const [key, value] of Object.entries(attributes))
			element.setAttribute(key, value);
		element.textContent = text;
		return element;
	};
	const path = (values) => values.map((value, i) => {
		const joined = i && values[i - 1] !== null &&
			Math.abs(ago[i - 1] - ago[i] - seconds[i]) < 1;

		if (value === null)
			return "";

		return `${joined ? "" : `M${x(ago[i] + seconds[i])} ${y(value)}`}` +
			`L${x(ago[i])} ${y(value)}`;
	}).join("");

	svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
	svg.setAttribute("aria-label", ago.length ? `now ${lines.map(([name, values]) =>
		`${name} ${values.at(-1)?.toFixed(1) ?? "–"}${unit}`).join(", ")}`
		: "no figures yet");
	svg.replaceChildren(
		...[0, most / 2, most].flatMap((value) => [
			node("line", { x1: 46, x2: width - 6, y1: y(value), y2: y(value) }),
			node("text", { x: 40, y: y(value) + 4, "text-anchor": "end" },
				`${+value.toPrecision(2)}${unit}`)]),
		...[4, 3, 2, 1, 0].map((part) => node("text", {
			x: x(minutes * 15 * part), y: height - 3,
			"text-anchor": part === 4 ? "start" : part ? "middle" : "end",
		}, part ? `-${minutes * part / 4} min` : "now")),
		...facts.history.restarts.filter((one) => one.ago_s < 60 * minutes).map((one) => {
			const at = x(one.ago_s), how = one.cold ? "with an empty cache"
				: "the cache was kept";
			const line = node("line", { class: "restart", x1: at, x2: at, y1: y(0),
				y2: y(most) });

			line.append(node("title", {}, `restart ${age(one.ago_s)} ago, ${how}`));
			return line;
		}),
		...lines.map(([name, values]) => node("path", { class: name, d: path(values) })));
}

function drawHour() {
	const hour = facts.history, share = (part) => part.map((n, i) =>
		hour.input_positions[i] ? percent(n, hour.input_positions[i]) : null);

	drawChart("hits", [["hits", share(hour.hit_positions)],
		["shared", share(hour.shared_hit_positions)]], " %", 100);
	drawChart("evictions", [["evicted", hour.evicted_pages.map((n, i) => n / hour.seconds[i])]],
		"", 1);
	drawChart("refusals", [["refused", hour.refusals.map((n, i) => n / hour.seconds[i])]],
		"", 1);
}

function drawStore() {
	const store = facts.store;
	$("store").hidden = !store;
	if (!store)
		return;
	$("store-about").textContent = store.up ? `up ${age(store.uptime_ns / 1e9)}, ${
		plural(store.queued_pages, "page")} to copy, ${
		plural(store.open_loads, "load")} open` : "";
	$("store-alarm").hidden = !store.alarm;
	$("store-alarm").textContent = `▲ ${store.alarm}`;
	$("store-parts").hidden = !store.up;
	if (!store.up)
		return;
	rows("store-tiers", [
		[`memory, ${bytes(store.ram_bytes)}`, store.pages, store.room_pages],
		[`file, ${bytes(store.file_bytes)}`, store.file_pages, store.file_room_pages],
	].filter(([, , room]) => room), ([name, pages, room]) => [cell(name), amount(pages),
		amount(room), make("td", {}, meter([["protected", pages]], room))]);
	rows("store-counts", [
		["fetches", store.fetches, `${rate(store.hits, store.fetches)} got pages`],
		["pages loaded", store.loaded_pages, store.loaded_pages
			? `the last ${age(store.unloaded_ns / 1e9)} ago` : ""],
		["pages computed by clients", store.computed_pages,
			`${number(store.recomputed_pages)} of them were here`],
	], ([name, count, text]) => [cell(name), amount(count), cell(text)]);
}

// What is wrong with a session; "": nothing.
function trouble(one, i, past) {
	if (facts.stopped.includes(i))
		return "its process is stopped";
	if (one.state === "dying" || one.state === "dead")
		return !one.exited ? "its process lives on" : !one.hung_up
			? "a child of it holds the socket" : one.quiet ? "its pages come back"
				: "work may be in flight";
	return one.cq_waiting && past?.cq_waiting && one.operations === past.operations
		? "takes no answers" : "";
}

function drawSessions() {
	const same = (one) => (other) => other.session === one.session &&
		other.sealer === one.sealer && other.rank === one.rank;
	const list = facts.sessions.map((one, i) =>
		({ one, i, past: before?.sessions.find(same(one)) }));
	const pace = (one, past) => past && facts.now_s > before.now_s
		? Math.round((one.operations - past.operations) / (facts.now_s - before.now_s)) : 0;

	list.sort((a, b) => a.one.session - b.one.session || a.one.rank - b.one.rank);
	rows("sessions", list, ({ one, i, past }) => {
		const why = trouble(one, i, past), name = one.label || (one.pid ? "" : "–");

		return [cell(one.rank ? `${one.session}, rank ${one.rank}` : one.session),
			cell(why ? `▲ ${one.state}: ${why}` : one.state, why ? "alarm" : ""),
			cell(one.pid ? `${name} pid ${one.pid}` : name),
			...(one.rank ? ["", "", "", "", "", "", ""].map((text) => cell(text))
				: [...[one.leases, one.private, one.quarantined,
					one.deferred].map(amount),
				cell(rate(one.hit_positions, one.input_positions), "number"),
				amount(refusedOf(one)), amount(pace(one, past))]),
			cell(age(one.age_s), "number")];
	});
}

function drawLatencies() {
	const width = (ns) => ns ? Math.max(2, 100 * (Math.log2(ns / 64) + 1) / 24) : 0;

	$("latency-span").textContent = facts.latency_s === null ? "since its start"
		: "in the last minute";
	rows("latencies", facts.latencies, (one) => [cell(one.op.toUpperCase()), amount(one.count),
		cell(time(one.p50_ns), "number"), cell(time(one.p99_ns), "number"),
		make("td", {}, meter([["protected", width(one.p50_ns)],
			["evictable", width(one.p99_ns) - width(one.p50_ns)]], 100))]);
}

// ---- asking

async function ask(url, read = (answer) => answer.json()) {
	const answer = await fetch(url, { signal: AbortSignal.timeout(15000) });

	if (!answer.ok)
		throw new Error(await answer.text());
	return answer.status === 204 ? null : read(answer);
}

function tell(up, why) {
	document.body.dataset.state = up ? "up" : "down";
	if ($("state").textContent !== why)
		$("state").textContent = why;
}

async function askTree() {
	const data = await ask(`tree?after=${version}`,
		async (answer) => parse(await answer.arrayBuffer()));

	if (!data)
		return;
	$("tree").hidden = !data.up;
	version = data.tree;
	if (data.up) {
		icicle.set(new Tree(data));
		$("tree-size").textContent = plural(icicle.tree.n, "node") +
			(data.omitted ? `, and ${number(data.omitted)} that are not shown` : "");
		drawPath();
	} else {
		$("tree-size").textContent = data.why;
	}
}

async function look() {
	const data = await ask("page.json");

	if (!data.up) {
		tell(false, `the daemon does not answer: ${data.why}`);
		return;
	}
	before = facts;
	facts = data;
	tell(true, data.draining ? "the daemon stops" : data.disabled ? "caching is disabled"
		: "the daemon answers");
	drawHead();
	drawFigures();
	drawPool();
	drawHour();
	drawStore();
	drawSessions();
	drawLatencies();
	if (data.tree !== version)
		await askTree();
	drawTree();
}

async function run() {
	try {
		if (!document.hidden)
			await look();
	} catch (error) {
		tell(false, error instanceof TypeError || error.name === "TimeoutError"
			? "kvtmetricsd does not answer" : error.message);
	}
	setTimeout(run, POLL_MS);
}

icicle.theme();
drawScale();
listen();
run();

// For the console, and for tests.
window.kvtrunk = { icicle, drawTree, get facts() { return facts; } };
