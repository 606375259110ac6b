// A plugin of qemu's user emulation that counts the instructions of the program that it runs, and says their number at its end as
// callgrind does. benches/decide/processors builds it and says what it is for.
//
// The declarations are those of qemu-plugin.h (version 1 of the interface, qemu 4.2 and newer), which Debian packages with the sources only.

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

typedef uint64_t plugin;
struct qemu_plugin_tb;

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin, void (*)(plugin, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned int, void *), int, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern void qemu_plugin_register_atexit_cb(plugin, void (*)(plugin, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;
static int says; // a program may have closed its own standard error by its end

// A block of instructions is about to run; several threads may be here.
static void run(unsigned int processor, void *instructions) {
  (void)processor;
  __atomic_fetch_add(&executed, (uintptr_t)instructions, __ATOMIC_RELAXED);
}

static void translated(plugin id, struct qemu_plugin_tb *block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_cb(block, run, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void ended(plugin id, void *nothing) {
  (void)id, (void)nothing;
  dprintf(says, "Collected : %" PRIu64 "\n", executed);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin id, const void *machine, int argc, char **argv) {
  (void)machine, (void)argc, (void)argv;
  says = dup(STDERR_FILENO);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
