"""``gazctl completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and flags.

    \b
      bash:  eval "$(gazctl completion bash)"           in ~/.bashrc
      zsh:   eval "$(gazctl completion zsh)"            in ~/.zshrc
      fish:  gazctl completion fish | source            in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "gazctl", "_GAZCTL_COMPLETE").source())
