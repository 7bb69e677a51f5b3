/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_BUDGET_H
#define KVT_STORE_BUDGET_H

/**
 * @file budget.h
 * Bytes that may be written in a second: pages that came back may take all of them, others only
 * what is above a half.
 */

#include <stdbool.h>
#include <stdint.h>

#define KVT_BUDGET_SECOND_NS 1000000000ull

struct kvt_budget {
	uint64_t bytes;     /* a second; 0: there is no limit */
	uint64_t page;      /* bytes that a page takes */
	uint64_t left;      /* now; those of a second and of two pages at most */
	uint64_t filled_ns; /* time of `left` */
};

static inline uint64_t kvt_budget_most(const struct kvt_budget *budget)
{
	return budget->bytes + 2 * budget->page;
}

static inline void kvt_budget_fill(struct kvt_budget *budget, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - budget->filled_ns, most = kvt_budget_most(budget);

	if (passed_ns > 2 * KVT_BUDGET_SECOND_NS)
		passed_ns = 2 * KVT_BUDGET_SECOND_NS;
	budget->left += (uint64_t)((double)budget->bytes * (double)passed_ns /
				   (double)KVT_BUDGET_SECOND_NS);
	budget->left = budget->left < most ? budget->left : most;
	budget->filled_ns = now_ns;
}

/** Return true if there is budget for a page that did not come back. */
static inline bool kvt_budget_has_spare(const struct kvt_budget *budget)
{
	return !budget->bytes || budget->left >= kvt_budget_most(budget) / 2;
}

/** Take the budget for a page; `used`: it came back. False: there is none for it now. */
static inline bool kvt_budget_spend(struct kvt_budget *budget, bool used, uint64_t now_ns)
{
	if (!budget->bytes)
		return true;
	kvt_budget_fill(budget, now_ns);
	if (budget->left < budget->page || (!used && !kvt_budget_has_spare(budget)))
		return false;
	budget->left -= budget->page;
	return true;
}

#endif
