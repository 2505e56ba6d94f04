from softnce.cli import main

main()
