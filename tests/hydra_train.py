"""fairseq-hydra-train as its executable runs it, found without the PATH."""

from fairseq_cli.hydra_train import cli_main

if __name__ == "__main__":
    cli_main()
