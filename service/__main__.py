"""The command `forage`: serve an experiment, train its nets, look after its log."""

if __name__ == "__main__":  # python -m service
    from service.cli.entry import run

    run()
