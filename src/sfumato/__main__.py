from sfumato.cli import main

main()
