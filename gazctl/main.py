"""The command tree of ``gazctl``."""

from __future__ import annotations

import click

from gazctl.lazy_group import LazyGroup, Place

_ROOT = {
    "up": Place("gazctl.up", "up", "Run a whole cluster on this machine."),
    "serve": Place("gazctl.serve", "serve", "Run a broker."),
    "journals": Place("gazctl.main", "journals", "List, create, change, append to and read journals."),
    "brokers": Place("gazctl.main", "brokers", "Look at the brokers of a cluster."),
    "top": Place("gazctl.top", "top", "Watch journals and their rates."),
    "attach-uuids": Place("gazctl.attach_uuids", "attach_uuids", "Give each line of the input a UUID."),
    "print-config": Place("gazctl.print_config", "print_config", "Show the configuration, and where to set it."),
    "completion": Place("gazctl.completion", "completion", "Print what makes a shell complete commands."),
}
_JOURNALS = {
    "list": Place("gazctl.journals.list_command", "list_command", "List journals and who holds them."),
    "apply": Place("gazctl.journals.apply_command", "apply", "Create, change and delete journals by a YAML file."),
    "edit": Place("gazctl.journals.edit_command", "edit", "Change journals in an editor."),
    "append": Place("gazctl.journals.append_command", "append", "Append to journals."),
    "read": Place("gazctl.journals.read_command", "read", "Read journals."),
    "fragments": Place("gazctl.journals.fragments_command", "fragments", "List the fragments of journals."),
    "prune": Place("gazctl.journals.prune_command", "prune", "Remove fragments that are past retention."),
    "scrub": Place("gazctl.journals.scrub_command", "scrub", "Read all fragments and verify them."),
    "reset-head": Place("gazctl.journals.reset_head_command", "reset_head", "Let appends go on after a disaster."),
    "suspend": Place("gazctl.journals.suspend_command", "suspend", "Suspend journals that nobody appends to."),
    "store-health": Place("gazctl.journals.store_health_command", "store_health", "Try whether a store can be used."),
}
_BROKERS = {"list": Place("gazctl.brokers_list", "brokers_list", "List brokers and what they hold.")}


main = LazyGroup(
    "gazctl",
    places=_ROOT,
    help="""Work with journals and the brokers that serve them.

    \b
    Start a cluster on this machine, and in another terminal look at it:
      gazctl up
      gazctl journals list -p -r
    Append a line, and follow a journal:
      echo hello | gazctl journals append -l name=my/journal
      gazctl journals read -l name=my/journal --block

    Flags can also be set in the environment, as BROKER_ADDRESS is for --broker.address, and in the file gazctl.ini in
    this folder or in ~/.config/gazette; see `gazctl print-config`.
    """,
)
click.version_option(package_name="pygazette", prog_name="gazctl")(main)

journals = LazyGroup(
    "journals",
    places=_JOURNALS,
    help="""List, create, change, append to and read journals.

    Most commands take a selector with -l, which says by labels and names which journals they are about.

    \b
    Selectors:
      name=my/journal                 this journal
      name:prefix=my/                 all whose name begins so
      app=web, env in (prod, stage)   by labels
      '!retired'                      those without a label
    """,
)

brokers = LazyGroup("brokers", places=_BROKERS, help="Look at the brokers of a cluster.")

if __name__ == "__main__":
    main()
