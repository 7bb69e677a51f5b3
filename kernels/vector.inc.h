/* SPDX-License-Identifier: Apache-2.0 */
/* Float vector operations that are written alike for any width. Inputs: `vf` of each path. */

#include <string.h>

static inline vf v_zero(void)
{
	return (vf){ 0 };
}

static inline vf v_load(const float *source)
{
	vf value;

	memcpy(&value, source, sizeof value);
	return value;
}

static inline void v_store(float *target, vf value)
{
	memcpy(target, &value, sizeof value);
}

static inline vf v_add(vf a, vf b)
{
	return a + b;
}

static inline vf v_sub(vf a, vf b)
{
	return a - b;
}

static inline vf v_mul(vf a, vf b)
{
	return a * b;
}

static inline float v_lane0(vf value)
{
	return value[0];
}
