"""`holdfast completion`: a script that lets a shell complete commands, options and the values of choices.

The script is click's own. For each completion the shell runs `holdfast` with the variable `_HOLDFAST_COMPLETE`; that
takes about as long as `holdfast --version`. Names of queues, tasks and jobs are not completed: each press of the key
would open the store, or import the user's module.
"""

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast.cli.json_output import print_json
from holdfast.cli.options import examples, json_option

PROGRAM = "holdfast"
VARIABLE = "_HOLDFAST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        'eval "$(holdfast completion bash)"    # in ~/.bashrc',
        'eval "$(holdfast completion zsh)"     # in ~/.zshrc',
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print a script that lets a shell complete commands and options."""
    script = _script(shell)
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)


def _script(shell: str) -> str:
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    # Of the base class: the one for bash also starts bash, to check its version.
    return ShellComplete.source(
        completion_class(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE)
    )
