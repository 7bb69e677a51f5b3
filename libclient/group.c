/* SPDX-License-Identifier: Apache-2.0 */

/* Groups: rank 0 asks for a token; members connect with it (connect.c). */

#include <errno.h>
#include <string.h>

#include "kvtrunk_group.h"
#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/wait.h"

int kvt_group_open(struct kvt_client *client, uint32_t n_ranks,
		   const struct kvt_group_token *token, struct kvt_group_token *ret_token)
{
	struct kvt_message_group message = { .head.type = KVT_MSG_GROUP, .n_ranks = n_ranks };
	const struct kvt_message_group *answer = (const void *)client->packet;
	int rc;

	if (token && !token->words[0] && !token->words[1])
		return kvt_client_fail(client, -EINVAL, 0, "group: the token is all zeroes: choose "
				       "128 bits that others cannot guess, or give none");
	if (token)
		memcpy(message.token, token->words, sizeof(message.token));
	rc = kvt_control_ask(client, &message.head, sizeof(message), NULL, 0);
	if (rc < 0)
		return rc;
	if (rc != sizeof(*answer))
		return kvt_client_fail(client, -EPROTO, 0, "group: %d bytes in the answer", rc);
	if (answer->head.result < 0)
		return kvt_client_fail(client, answer->head.result, 0, "group: %.*s",
				       (int)sizeof(answer->text), answer->text);
	memcpy(ret_token->words, answer->token, sizeof(ret_token->words));
	client->mirror.last_rank = n_ranks - 1;
	return 0;
}

int kvt_group_check(struct kvt_client *client)
{
	int rc;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc != 0)
		return rc;
	kvt_client_look(client);
	return kvt_client_usable(client);
}
