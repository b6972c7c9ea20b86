"""``invalidator completion``: the script that lets a shell complete verbs and options."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

PROGRAM: Final = "invalidator"

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

completion_init()  # the answers to the script, which calls the program with a variable of its own


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that is to complete.")]) -> None:
    """Print the script with which a shell completes verbs and options."""
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", shell=shell))
