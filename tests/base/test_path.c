/* SPDX-License-Identifier: Apache-2.0 */
/* Where sockets are. */
#include <string.h>

#include "base/path.h"
#include "tests/lib/cases.h"

TEST(the_socket_is_beside_the_daemons)
{
	char path[KVT_STORE_PATH_BYTES], name[200];

	assert_int_equal(kvt_store_path("/run/kvtrunk/a.sock", path), 0);
	assert_string_equal(path, "/run/kvtrunk/a.store");
	assert_int_equal(kvt_store_path("./socket", path), 0);
	assert_string_equal(path, "./socket.store");
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_not_equal(kvt_store_path(name, path), 0);
	name[101] = '\0';
	assert_int_equal(kvt_store_path(name, path), 0);
}
