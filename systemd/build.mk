# SPDX-License-Identifier: Apache-2.0
#
#   make install [DESTDIR=] [PREFIX=/usr/local] [SYSCONFDIR=/etc]
#   make deb         Debian packages in $(O)/deb
#   make uninstall   with the same variables: removes what install put there, and nothing else

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINDIR := $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR := $(PREFIX)/include
MANDIR := $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
DOCDIR := $(PREFIX)/share/doc/kvtrunk
BASHDIR := $(PREFIX)/share/bash-completion/completions
ZSHDIR := $(PREFIX)/share/zsh/vendor-completions

INSTALL_BIN := $(addprefix $(O)/,kvtrunkd kvtstored kvtctl kvtlab kvtbench \
	$(if $(METRICS_HTTP),kvtmetricsd))
INSTALL_LIB := $(addprefix $(O)/,libkvtrunk.a libkvtkernels.a)
INSTALL_HEADERS := $(wildcard include/kvtrunk*.h include/kvt_kernels*.h)
INSTALL_PC := libclient/libkvtrunk.pc kernels/libkvtkernels.pc
INSTALL_PAGES := $(wildcard docs/*.[1-8]) $(O)/docs/kvtrunk.3
INSTALL_UNITS := systemd/kvtrunkd@.service systemd/kvtrunkd@.socket systemd/kvtstored@.service \
	systemd/kvtstored.service \
	$(if $(METRICS_HTTP),systemd/kvtrunk-metrics@.service)
INSTALL_DOCS := $(wildcard *.md) LICENSE systemd/example.conf docs/grafana-dashboard.json \
	docs/prometheus-alerts.yml $(wildcard docs/*.md docs/*.png)
put = install -D -m $(1) $(2) $(DESTDIR)$(3)
# What a command prints, at once where it belongs: others may install from this build just now.
put_text = install -d -m 755 $(DESTDIR)$(dir $(2)) && $(1) >$(DESTDIR)$(2) && \
	chmod 644 $(DESTDIR)$(2)

# Links of documents: to installed headers; none to what only a checkout has. Manual pages are where
# man finds them, compressed by some distributions: their names stay.
relink = sed -E -e 's@\[[^]]*\]\((docs/)?([a-z.-]+)\.([1-8])\)@\2(\3)@g' \
	-e 's|\]\(\.\./include/|](../../../../include/|g' \
	-e 's@\[([^]]*)\]\(\.\./(bench|examples|kernels|tests)/[^)]*\)@\1@g'
# Replace the paths that units are written with by the installed ones.
place = sed -e 's|/usr/bin/kvt|$(BINDIR)/kvt|' -e 's|/etc/kvtrunk|$(SYSCONFDIR)/kvtrunk|'

# Programs find the libraries through the linker's cache. Print what root must still do.
define update_linker
export PATH="$$PATH:/usr/sbin:/sbin"; \
	if [ "$$(id -u)" != 0 ]; then echo "  ldconfig   (as root)"; \
	elif ldconfig && ! ldconfig -p | grep -qF "$(LIBDIR)/libkvtrunk.so.0"; then \
		echo "  echo $(LIBDIR) >/etc/ld.so.conf.d/kvtrunk.conf; ldconfig"; fi
endef

installables: $(INSTALL_BIN) $(INSTALL_LIB) $(O)/libkvtrunk.so $(O)/libkvtkernels.so \
		$(O)/docs/kvtrunk.3

install: installables
	@$(foreach f,$(INSTALL_BIN),$(call put,755,$(f),$(BINDIR)/$(notdir $(f))) &&) :
	@$(foreach f,$(INSTALL_LIB),$(call put,644,$(f),$(LIBDIR)/$(notdir $(f))) &&) :
	@$(call put,644,$(O)/libkvtrunk.so,$(LIBDIR)/libkvtrunk.so.$(VERSION))
	@$(call put,644,$(O)/libkvtkernels.so,$(LIBDIR)/libkvtkernels.so.$(VERSION))
	@ln -sf libkvtrunk.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvtrunk.so.0
	@ln -sf libkvtrunk.so.0 $(DESTDIR)$(LIBDIR)/libkvtrunk.so
	@ln -sf libkvtkernels.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvtkernels.so.1
	@ln -sf libkvtkernels.so.1 $(DESTDIR)$(LIBDIR)/libkvtkernels.so
	@$(foreach f,$(INSTALL_HEADERS),$(call put,644,$(f),$(INCLUDEDIR)/$(notdir $(f))) &&) :
	@$(foreach f,$(INSTALL_PC),$(call put_text,$(pkg_config) $(f).in,$\
		$(LIBDIR)/pkgconfig/$(notdir $(f))) &&) :
	@$(foreach f,$(INSTALL_PAGES),$(call put,644,$(f),$(MANDIR)/man$(patsubst \
		.%,%,$(suffix $(f)))/$(notdir $(f))) &&) :
	@sed -n 's/^\.Fn \(kvt_[a-z0-9_]*\).*/\1/p' $(O)/docs/kvtrunk.3 | \
		while read -r name; do ln -sf kvtrunk.3 $(DESTDIR)$(MANDIR)/man3/$$name.3; done
	@$(foreach f,$(INSTALL_UNITS),$(call put_text,$(place) $(f),$\
		$(UNITDIR)/$(notdir $(f))) &&) :
	@$(call put,644,systemd/kvtrunk.sysusers,$(PREFIX)/lib/sysusers.d/kvtrunk.conf)
	@$(call put,644,systemd/kvtrunk.tmpfiles,$(PREFIX)/lib/tmpfiles.d/kvtrunk.conf)
	@$(foreach f,$(INSTALL_DOCS),\
		$(call put_text,$(relink) $(f),$(DOCDIR)/$(patsubst systemd/%,%,$(f))) &&) :
	@$(call put,644,tools/completions/kvtctl.bash,$(BASHDIR)/kvtctl)
	@$(call put,644,tools/completions/_kvtctl,$(ZSHDIR)/_kvtctl)
	@$(call put,644,lab/completions/kvtlab.bash,$(BASHDIR)/kvtlab)
	@$(call put,644,lab/completions/_kvtlab,$(ZSHDIR)/_kvtlab)
	@install -d -m 755 $(DESTDIR)$(SYSCONFDIR)/kvtrunk
	@echo "kvtrunk $(VERSION): installed below $(DESTDIR)$(PREFIX). Next:"
	@$(if $(DESTDIR),echo "  ldconfig   (on the machine that it is for)",$(update_linker))
	@echo "  systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload"
	@echo "  cp $(DOCDIR)/example.conf $(SYSCONFDIR)/kvtrunk/NAME.conf, edit it, and"
	@echo "  systemctl enable --now kvtrunkd@NAME.socket"

uninstall:
	@find $(DESTDIR)$(MANDIR)/man3 -lname kvtrunk.3 -delete 2>/dev/null || true
	@rm -f $(foreach f,$(INSTALL_BIN),$(DESTDIR)$(BINDIR)/$(notdir $(f))) \
		$(foreach f,$(INSTALL_LIB),$(DESTDIR)$(LIBDIR)/$(notdir $(f))) \
		$(addprefix $(DESTDIR)$(LIBDIR)/libkvtrunk.so,"" .0 .$(VERSION)) \
		$(addprefix $(DESTDIR)$(LIBDIR)/libkvtkernels.so,"" .1 .$(VERSION)) \
		$(foreach f,$(INSTALL_HEADERS),$(DESTDIR)$(INCLUDEDIR)/$(notdir $(f))) \
		$(foreach f,$(INSTALL_PC),$(DESTDIR)$(LIBDIR)/pkgconfig/$(notdir $(f))) \
		$(foreach f,$(INSTALL_PAGES),$(DESTDIR)$(MANDIR)/man$(patsubst \
		.%,%,$(suffix $(f)))/$(notdir $(f))) \
		$(foreach f,$(INSTALL_UNITS),$(DESTDIR)$(UNITDIR)/$(notdir $(f))) \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d/kvtrunk.conf \
		$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/kvtrunk.conf \
		$(addprefix $(DESTDIR)$(BASHDIR)/,kvtctl kvtlab) \
		$(addprefix $(DESTDIR)$(ZSHDIR)/_,kvtctl kvtlab)
	@rm -rf $(DESTDIR)$(DOCDIR)
	@rmdir $(DESTDIR)$(SYSCONFDIR)/kvtrunk 2>/dev/null || true
	@echo "kvtrunk $(VERSION): removed from $(DESTDIR)$(PREFIX); configuration was left"

# Debian packages in $(O)/deb, from a copy of what git tracks or would track.
deb:
	@O=$(O) VERSION=$(VERSION) tools/deb.sh

.PHONY: installables install uninstall deb
