/* SPDX-License-Identifier: Apache-2.0 */
/* Tell if two declarations of a function can be called alike. */
#pragma once

#include <type_traits>

template <class A, class B> struct alike {
	/* An enumeration is passed as the integer of its size, and all pointers alike. CUuuid and
	 * the IPC handle are structures of bytes. */
	static constexpr bool value =
		sizeof(A) == sizeof(B) &&
		(std::is_pointer<A>::value == std::is_pointer<B>::value) &&
		(std::is_class<A>::value == std::is_class<B>::value) &&
		(std::is_floating_point<A>::value == std::is_floating_point<B>::value);
};

template <class F, class G> struct same;
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
	template <bool equal, class = void> struct all {
		static constexpr bool value = false;
	};
	template <class unused> struct all<true, unused> {
		static constexpr bool value = (alike<A, B>::value && ... && true);
	};
	static constexpr bool value = alike<R, S>::value && all<sizeof...(A) == sizeof...(B)>::value;
};
