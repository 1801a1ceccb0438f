from scripts.rename.run import main

raise SystemExit(main())
