/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_MPS_CONTROL_H
#define KVT_TESTS_MPS_CONTROL_H

/**
 * @file mps_control.h
 * A stand-in for the control program of MPS, nvidia-cuda-mps-control: a script over files in its
 * folder. It adds each line that it gets to `lines`, runs the file `more` if there is one, and
 * answers with `servers` or `clients-SERVER`. To terminate_client it answers 0, or `refusal` if
 * there is one; with a file `failure` it fails.
 */

static const char mps_control_script[] =
	"#!/bin/sh\n"
	"cd \"${0%/*}\" || exit 1\n"
	"read -r word server client\n"
	"echo \"$word $server $client\" | sed 's/ *$//' >>lines\n"
	"[ ! -e more ] || . ./more\n"
	"case $word in\n"
	"get_server_list) cat servers ;;\n"
	"get_client_list) cat \"clients-$server\" ;;\n"
	"terminate_client) cat refusal 2>/dev/null || echo 0; [ ! -e failure ] ;;\n"
	"esac\n";

#endif
